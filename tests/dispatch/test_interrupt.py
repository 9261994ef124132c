"""Which signals stop a run, and that their old handlers are restored afterwards."""

import signal
import threading

import pytest

from planner.dispatch.interrupt import Interrupts
from planner.runner.signals import ended_like_ctrl_c


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
def test_others_take_the_way_of_ctrl_c(number):
    """And the handlers of before are there again."""
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupts("launch", print):
        signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_the_first_one_is_soft_and_the_second_is_rays():
    """The first asks the controller, in a thread of its own; only then does Ray's own handler end the workers."""
    rays, asked = [], threading.Event()
    interrupts = Interrupts("launch", print)
    interrupts._stop = asked.set
    handle = interrupts.soften(lambda number, _frame: rays.append(number))
    handle(signal.SIGINT, None)
    assert asked.wait(30)
    assert rays == []
    handle(signal.SIGINT, None)
    assert rays == [signal.SIGINT]


def test_an_ignored_sigint_stays_ignored_and_sigterm_stops_all_the_same():
    """As a background shell starts it: before Ray has installed its handler, and after."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt), Interrupts("launch", print):  # noqa: PT012  # the first one is nothing
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN

    rays, asked = [], threading.Event()
    with Interrupts("launch", print) as interrupts:
        interrupts._stop = asked.set
        signal.signal(signal.SIGINT, interrupts.soften(lambda number, _frame: rays.append(number)))
        signal.raise_signal(signal.SIGINT)
        assert not interrupts._is_asked
        signal.raise_signal(signal.SIGTERM)
        assert asked.wait(30)
        assert rays == []
        signal.raise_signal(signal.SIGTERM)
        assert rays == [signal.SIGINT]


def test_sigterm_ends_a_command_whose_sigint_is_ignored():
    """`planner verify`, `planner prepare` and what `planner run` does around the training."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt), ended_like_ctrl_c():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
