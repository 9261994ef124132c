"""Which signals stop a run, and that they are somebody else's again afterwards."""

import signal
import threading

import pytest

from planner.dispatch.interrupt import Interrupts


@pytest.fixture
def hang_up():
    """What SIGHUP did before."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_up")
def test_under_nohup_a_closed_terminal_stops_nothing():
    """Ignored before, ignored within."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts("launch", print):
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        signal.raise_signal(signal.SIGHUP)


@pytest.mark.usefixtures("hang_up")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_others_take_the_way_of_ctrl_c(number):
    """And the handlers of before are there again."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
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
