"""Which signals stop a run, and that their old handlers are restored afterwards."""

import os
import queue
import signal
import threading

import pytest
from events import EVENT_S

from planner.dispatch.interrupt import Interrupts
from planner.dispatch.mailbox import end_reply_key, end_request_key, status_key
from planner.runner.signals import ended_like_ctrl_c
from planner.store.records import canonical
from planner.store.run_status import RunStatus


@pytest.fixture(autouse=True)
def signals():
    """As a terminal starts a process; `nohup` and a shell's `&` may have started this one otherwise."""
    ours = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in ours.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_under_nohup_a_closed_terminal_stops_nothing():
    """Ignored before, ignored within."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts("launch", print):
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        signal.raise_signal(signal.SIGHUP)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_stop_a_run_as_ctrl_c_does(number):
    """And the handlers of before are there again."""
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupts("launch", print):
        signal.raise_signal(number)
    assert signal.getsignal(number) == before


@pytest.fixture
def mailbox(monkeypatch):
    """The cluster's key-value store, as a dictionary: here, a controller that publishes what a stop waits for."""
    content = {}
    monkeypatch.setattr("planner.dispatch.interrupt.kv_get", lambda key: content.get(key, ""))
    monkeypatch.setattr("planner.dispatch.live_status.kv_get", lambda key: content.get(key, ""))
    monkeypatch.setattr("planner.dispatch.interrupt.kv_put", content.__setitem__)
    return content


def publish(mailbox, stop):
    mailbox[status_key("launch")] = canonical(
        RunStatus(
            launch="launch", time_s=0.0, state="Stopping", why="", next="", least=1, most=1, stop=stop,
            nodes=(), workers=(),
        )
    )  # fmt: skip


def test_the_first_interrupt_stops_and_the_second_ends_the_workers_at_once(mailbox):
    """Both are answered. So is a third, though there is nothing more to do."""
    publish(mailbox, "step 4 becomes durable: about 9 s")
    rays, said = queue.Queue(), queue.Queue()
    with Interrupts("launch", said.put) as interrupts:
        signal.signal(signal.SIGINT, interrupts.soften(lambda number, _frame: rays.put(number)))
        signal.raise_signal(signal.SIGINT)
        assert said.get(timeout=EVENT_S) == (
            "stopping: step 4 becomes durable: about 9 s. To end the workers at once and keep the last durable step, "
            "interrupt once more"
        )
        assert rays.empty()
        signal.raise_signal(signal.SIGINT)
        assert rays.get(timeout=EVENT_S) == signal.SIGINT
        assert said.get(timeout=EVENT_S) == "ending the workers at once. The run resumes from the last durable step"
        signal.raise_signal(signal.SIGINT)
        assert said.get(timeout=EVENT_S) == "the workers are being ended already"
    assert said.empty()


def test_a_second_interrupt_that_is_faster_than_the_first_ones_line_still_ends_the_workers(mailbox, monkeypatch):
    """The line of the first would then promise a commit that nobody waits for."""
    asked, may_go_on = threading.Event(), threading.Event()

    def put(key, value):
        mailbox[key] = value
        asked.set()
        assert may_go_on.wait(EVENT_S)

    monkeypatch.setattr("planner.dispatch.interrupt.kv_put", put)
    rays, said = queue.Queue(), queue.Queue()
    with Interrupts("launch", said.put) as interrupts:
        signal.signal(signal.SIGINT, interrupts.soften(lambda number, _frame: rays.put(number)))
        signal.raise_signal(signal.SIGINT)
        assert asked.wait(EVENT_S)
        signal.raise_signal(signal.SIGINT)
        assert rays.get(timeout=EVENT_S) == signal.SIGINT
        assert said.get(timeout=EVENT_S).startswith("ending the workers at once")
        may_go_on.set()
        next(thread for thread in threading.enumerate() if thread.name == "planner-stop").join(EVENT_S)
    assert said.empty()


@pytest.mark.usefixtures("mailbox")
def test_two_interrupts_for_which_python_calls_its_handler_once_end_the_workers():
    """Ray's C++ code returns about once a second. Both came before that."""
    rays, said = queue.Queue(), queue.Queue()
    with Interrupts("launch", said.put) as interrupts:
        handle = interrupts.soften(lambda number, _frame: rays.put(number))
        signal.signal(signal.SIGINT, handle)
        handle(signal.SIGINT, None)  # the one call
        assert said.get(timeout=EVENT_S).startswith("stopping: ")
        for _ in range(2):
            os.write(interrupts._written, bytes([signal.SIGINT]))  # as Python does for each of them
        assert rays.get(timeout=EVENT_S) == signal.SIGINT
        assert said.get(timeout=EVENT_S).startswith("ending the workers at once")
    assert said.empty()


@pytest.mark.usefixtures("mailbox")
def test_a_signal_that_is_sent_twice_is_one_request():
    """`timeout` sends SIGTERM to its child and then to the whole group. A person's second signal comes later."""
    now, rays, asked = [100.0], [], queue.Queue()
    with Interrupts("launch", lambda _text: None, lambda: now[0]) as interrupts:
        interrupts._stop = lambda: asked.put("stop")
        signal.signal(signal.SIGINT, interrupts.soften(lambda number, _frame: rays.append(number)))
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
        assert asked.get(timeout=EVENT_S) == "stop"
        assert rays == []
        now[0] += 2.0
        signal.raise_signal(signal.SIGTERM)
        assert set(rays) == {signal.SIGINT}
    assert asked.empty()


def test_when_all_have_committed_the_workers_are_ended_without_another_interrupt(mailbox):
    """The controller's answer ends them."""
    ended, said = threading.Event(), queue.Queue()
    with Interrupts("launch", said.put) as interrupts:
        handle = interrupts.soften(lambda *_: ended.set())
        signal.signal(signal.SIGINT, handle)
        handle(signal.SIGINT, None)
        assert said.get(timeout=EVENT_S).startswith("stopping: all workers finish their step")
        mailbox[end_reply_key("launch")] = "yes"
        assert ended.wait(EVENT_S)
    assert said.empty()


def test_ray_is_interrupted_again_until_it_ends(mailbox, monkeypatch):
    """Found by a storm: a node was lost in a stop, and two signals at once were heard as one. Ray waited for ever."""
    monkeypatch.setattr("planner.dispatch.interrupt._ABORT_S", 0.2)
    monkeypatch.setattr("planner.dispatch.interrupt._AGAIN_S", 0.2)
    heard = []

    def rays(number, _frame):
        heard.append(number)
        if len(heard) == 3:
            raise SystemExit

    mailbox[end_reply_key("launch")] = "yes"
    with pytest.raises(KeyboardInterrupt), Interrupts("launch", lambda _text: None) as interrupts:  # noqa: PT012
        handle = interrupts.soften(rays)
        signal.signal(signal.SIGINT, handle)
        handle(signal.SIGINT, None)
        threading.Event().wait(EVENT_S)
    assert heard == [signal.SIGINT] * 3


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), SystemExit(1)], ids=["terminal", "pipe"])
def test_a_stop_goes_on_when_nobody_reads_what_it_says(mailbox, error):
    """A closed terminal, or `| tee log` that the same Ctrl-C ended. The workers still end after their commit."""
    ended, tried = threading.Event(), queue.Queue()

    def say(text):
        tried.put(text)
        raise error

    with Interrupts("launch", say) as interrupts:
        handle = interrupts.soften(lambda *_: ended.set())
        signal.signal(signal.SIGINT, handle)
        handle(signal.SIGINT, None)
        assert tried.get(timeout=EVENT_S).startswith("stopping: ")
        assert mailbox[end_request_key("launch")] == "yes"
        assert not ended.is_set()
        mailbox[end_reply_key("launch")] = "yes"
        assert ended.wait(EVENT_S)


def test_an_ignored_sigint_stays_ignored_and_sigterm_stops_all_the_same():
    """As a background shell starts it: before Ray has installed its handler, and after."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt), Interrupts("launch", print):  # noqa: PT012  # the first one is nothing
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN

    rays, asked, now = [], threading.Event(), [100.0]
    with Interrupts("launch", print, lambda: now[0]) as interrupts:
        interrupts._stop = asked.set
        signal.signal(signal.SIGINT, interrupts.soften(lambda number, _frame: rays.append(number)))
        signal.raise_signal(signal.SIGINT)
        assert not interrupts._num_asked
        signal.raise_signal(signal.SIGTERM)
        assert asked.wait(EVENT_S)
        assert rays == []
        now[0] += 2.0
        signal.raise_signal(signal.SIGTERM)
        assert set(rays) == {signal.SIGINT}


def test_sigterm_ends_a_command_whose_sigint_is_ignored():
    """`planner verify`, `planner prepare` and what `planner run` does around the training."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt), ended_like_ctrl_c():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
