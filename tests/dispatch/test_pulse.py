"""A controller that is suspended: noticed, said, and ended; a worker that waits says where."""

import threading

from planner.dispatch import signals
from planner.dispatch.pulse import Listener, Pulse


def listen(beats, every_s=5.0):
    """What is said of beats heard one after another, and why the controller was ended."""
    said = []
    listener = Listener(lambda: "", said.append)
    words = [listener.judge(beat, every_s * at) for at, beat in enumerate(beats)]
    return [(at * every_s, w) for at, w in enumerate(words) if w], listener.verdict


def test_a_controller_that_beats_is_left_alone():
    """Each beat is another one; one that comes late is no reason."""
    assert listen([str(n // 5) for n in range(1000)]) == ([], "")


def test_before_the_first_beat_ray_is_starting_it():
    """However long that takes: Ray itself reports one that does not come up."""
    assert listen([""] * 1000) == ([], "")


def test_silence_is_said_less_and_less_often_and_ends_the_run():
    """After 30 s, after a minute, and so on; after five minutes it is enough."""
    said, verdict = listen(["1", *["2"] * 62])
    assert [at - 5 for at, _ in said] == [30, 60, 120, 240, 305]
    assert "has not answered for 5 min" in verdict
    assert "is ended" in said[-1][1]


def test_a_machine_that_was_only_slow_is_forgiven():
    """Two minutes without a beat, twice."""
    said, verdict = listen(["1", *["2"] * 24, "3", *["4"] * 24, "5"])
    assert [at for at, _ in said] == [35, 65, 160, 190]
    assert not verdict


def test_a_pause_of_everything_is_nobodys_silence():
    """The driver did not look, either: of 400 s between two looks, 15 count."""
    listener = Listener(lambda: "", lambda _words: None)
    assert [listener.judge("2", at) for at in (5, 405, 410)] == ["", "", ""]
    assert not listener.verdict
    assert "for 30 s" in listener.judge("2", 420)


def test_a_driver_that_is_always_slow_ends_it_all_the_same():
    """Of each look 15 s count."""
    listener = Listener(lambda: "", lambda _words: None)
    for at in range(0, 1000, 40):
        listener.judge("2", at)
    assert listener.verdict


def test_a_loop_that_does_not_come_round_stops_the_pulse():
    """The process lives, and waits where nothing comes."""
    now = [0.0]
    pulse = Pulse(lambda _beat: None, clock=lambda: now[0])
    now[0] = 1700.0
    assert pulse.beats()
    pulse.turned()
    now[0] = 3400.0
    assert pulse.beats()
    now[0] = 3600.0
    assert not pulse.beats()


def test_a_thread_that_waits_in_our_code_says_where():
    """Asked from another one, as Ray's main thread asks the training thread."""
    release = threading.Event()
    thread = threading.Thread(target=lambda: _park(release))
    thread.start()
    try:
        while "park (signals.py" not in (found := signals.where()):
            pass
        assert "in wait (threading.py" in found
    finally:
        signals.release()
        thread.join(10)
        signals.reset()
    assert "park" not in signals.where()


def _park(release):
    try:
        signals.park()
    except signals.Released:
        release.set()
