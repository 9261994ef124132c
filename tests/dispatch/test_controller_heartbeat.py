"""A controller that is suspended: noticed, said, and ended; a worker that waits says where."""

import queue
import threading
from types import SimpleNamespace

from events import EVENT_S

from planner.dispatch import controller_heartbeat, mailbox
from planner.dispatch.controller_heartbeat import HeartbeatMonitor, HeartbeatSender
from planner.wording.event_text import text_of


def listen(beats, every_s=5.0):
    """What is said of beats heard one after another, and why the controller was ended."""
    said = []
    listener = HeartbeatMonitor(lambda: "", said.append)
    texts = [listener.judge(beat, every_s * at) for at, beat in enumerate(beats)]
    return [(at * every_s, text) for at, text in enumerate(texts) if text], listener.verdict


def test_a_controller_that_beats_is_left_alone():
    """Each beat is another one; one that comes late is no reason."""
    assert listen([str(n // 5) for n in range(1000)]) == ([], None)


def test_before_the_first_beat_ray_is_starting_it_and_has_half_an_hour():
    """Ray itself reports one that does not come up, but not one that hangs as soon as it is there."""
    said, verdict = listen([""] * 362)
    assert [at for at, _ in said] == [30, 60, 120, 240, 480, 960, 1805]
    assert all("has not started after" in text for _, text in said)
    assert not verdict.has_started
    assert text_of(verdict) == "the controller of the workers has not started after 30 min"
    assert listen([*[""] * 300, *map(str, range(1000))])[1] is None


def test_a_silent_controller_is_reported_less_and_less_often_and_then_ended():
    """After 30 s, after a minute, and so on; after five minutes it is enough."""
    said, verdict = listen(["1", *["2"] * 62])
    assert [at - 5 for at, _ in said] == [30, 60, 120, 240, 305]
    assert verdict.has_started
    assert text_of(verdict) == "the controller of the workers has not answered for 5 min"
    assert "planner ends it" in said[-1][1]


def test_a_machine_that_was_only_slow_is_forgiven():
    """Two minutes without a beat, twice."""
    said, verdict = listen(["1", *["2"] * 24, "3", *["4"] * 24, "5"])
    assert [at for at, _ in said] == [35, 65, 160, 190]
    assert not verdict


def test_a_pause_of_the_whole_machine_is_not_counted_as_silence():
    """The driver did not look, either: of 400 s between two looks, 15 count."""
    listener = HeartbeatMonitor(lambda: "", lambda _text: None)
    assert [listener.judge("2", at) for at in (5, 405, 410)] == ["", "", ""]
    assert not listener.verdict
    assert "for 30 s" in listener.judge("2", 420)


def test_a_driver_that_is_always_slow_ends_it_all_the_same():
    """Of each look 15 s count."""
    listener = HeartbeatMonitor(lambda: "", lambda _text: None)
    for at in range(0, 1000, 40):
        listener.judge("2", at)
    assert listener.verdict


def test_a_head_that_does_not_answer_is_reported_less_and_less_often():
    """And it says nothing about the controller, which is not ended for it."""
    listener = HeartbeatMonitor(lambda: "", lambda _text: None)
    listener.judge("1", 0)
    said = [(at, text) for at in range(5, 1000, 5) if (text := listener.unheard(at, at))]
    assert [at for at, _ in said] == [35, 65, 125, 245, 485, 965]
    assert "the head of the Ray cluster has not answered for 30 s" in said[0][1]
    assert listener.judge("1", 1000) == ""
    assert not listener.verdict
    assert listener.unheard(1005, 1005 + 29) == ""
    assert listener.unheard(1040, 1041)


def test_a_controller_that_could_not_be_ended_is_ended_at_the_next_beat(monkeypatch):
    """The head restarts: `ray.kill` fails twice."""
    monkeypatch.setattr(controller_heartbeat, "_BEAT_S", 0.01)
    monkeypatch.setattr(controller_heartbeat, "_GIVE_UP_S", 0.0)
    tries, is_ended, said = [], threading.Event(), []

    def end():
        tries.append(len(tries))
        if len(tries) < 3:
            raise ConnectionError
        is_ended.set()

    with HeartbeatMonitor(lambda: "1", said.append) as listener:
        listener.listen_to(end)
        assert is_ended.wait(EVENT_S)
    assert tries == [0, 1, 2]
    assert len(said) == 1


def test_an_error_of_the_head_is_reported(monkeypatch):
    """From the thread that listens."""
    monkeypatch.setattr(controller_heartbeat, "_BEAT_S", 0.01)
    monkeypatch.setattr(controller_heartbeat, "_SAID_AFTER_S", 0.02)
    said = queue.Queue()

    def heard():
        raise ConnectionError

    with HeartbeatMonitor(heard, said.put) as listener:
        listener.listen_to(lambda: None)
        assert "the head of the Ray cluster" in said.get(timeout=EVENT_S)


def test_a_loop_that_does_not_come_round_stops_the_heartbeat():
    """The process lives, and waits where nothing comes."""
    now = [0.0]
    beating = HeartbeatSender(lambda _beat: None, clock=lambda: now[0])
    now[0] = 1700.0
    assert beating.beats()
    beating.turned()
    now[0] = 3400.0
    assert beating.beats()
    now[0] = 3600.0
    assert not beating.beats()


def test_a_sender_that_the_driver_made_long_ago_beats_from_its_start(monkeypatch):
    """The driver makes it, and the controller's process starts it later, perhaps after a long wait for its place."""
    thread = SimpleNamespace(start=lambda: None)
    monkeypatch.setattr(controller_heartbeat, "threading", SimpleNamespace(Thread=lambda **_: thread))
    now = [0.0]
    beating = HeartbeatSender(lambda _beat: None, clock=lambda: now[0])
    now[0] = 3600.0
    beating.start()
    assert beating.beats()


def test_a_thread_that_waits_in_our_code_says_where():
    """Asked from another one, as Ray's main thread asks the training thread."""
    release = threading.Event()
    thread = threading.Thread(target=lambda: _park(release))
    thread.start()
    try:
        while "park (mailbox.py" not in (found := mailbox.current_location()):
            pass
        assert "in wait (threading.py" in found
    finally:
        mailbox.release()
        thread.join(10)
        mailbox.reset()
    assert "park" not in mailbox.current_location()


def _park(release):
    try:
        mailbox.park()
    except mailbox.UnwindTraining:
        release.set()
