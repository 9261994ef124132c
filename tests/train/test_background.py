"""Work in a thread beside training: its result, its error, its silence, and its end."""

import threading

import pytest
from events import EVENT_S

from planner.base import progress_counter
from planner.errors import StoreError, TrainingFailed
from planner.train import background
from planner.train.background import BackgroundWork


def failed(error):
    return TrainingFailed(f"{type(error).__name__}: {error}")


def test_the_result_is_waited_for():
    """It is not done before, and the work is not on the caller's thread."""
    go = threading.Event()
    work = BackgroundWork(lambda _moved: (go.wait(EVENT_S), threading.current_thread()), failed)
    assert (work.is_done, work.failure, work.ended_s) == (False, None, 0.0)
    go.set()
    was_set, thread = work.result()
    assert was_set
    assert thread is not threading.current_thread()
    assert thread.daemon  # a frozen disk must not keep the process
    assert work.is_done


@pytest.mark.parametrize("error", [OSError("disk"), StoreError("store"), AssertionError("odd"), MemoryError("much")])
def test_an_error_is_raised_to_who_waits(error):
    """As the error that the caller makes of it. Twice the same, as several may ask."""

    def work(_moved):
        raise error

    background_work = BackgroundWork(work, failed)
    for _ in range(2):
        with pytest.raises(TrainingFailed, match=f"^{type(error).__name__}: {error}$"):
            background_work.result()
    assert not background_work.is_done
    assert str(background_work.failure) == f"{type(error).__name__}: {error}"


def test_an_error_of_which_no_error_can_be_made_is_a_failure_too():
    """It must never look like a result: all workers would wait for this one."""

    def work(_moved):
        raise OSError("disk")

    def broken(_error):
        raise RuntimeError("cannot say")

    background_work = BackgroundWork(work, broken)
    with pytest.raises(TrainingFailed, match="OSError: disk"):
        background_work.result()
    assert not background_work.is_done


def test_a_base_exception_is_a_failure_too():
    """A library of the store may end its thread, or panic: that is no result, and whoever waits is told."""

    def work(_moved):
        raise SystemExit("out of here")

    background_work = BackgroundWork(work, failed)
    with pytest.raises(TrainingFailed, match="RuntimeError: SystemExit: out of here"):
        background_work.result()
    assert (background_work.has_ended, background_work.is_done) == (True, False)


def test_silence_ends_with_each_piece(monkeypatch):
    """On a clock of the test's own. Work that has ended is never silent. Each piece counts as work of the worker."""
    now_s, go, moved_once = [100.0], threading.Event(), threading.Event()
    monkeypatch.setattr(background.time, "monotonic", lambda: now_s[0])

    def work(moved):
        assert go.wait(EVENT_S)
        go.clear()
        moved()
        moved_once.set()
        assert go.wait(EVENT_S)
        return "done"

    before = progress_counter.work_done()
    background_work = BackgroundWork(work, failed)
    now_s[0] = 130.0
    assert background_work.silent_s == 30.0
    go.set()
    assert moved_once.wait(EVENT_S)
    assert background_work.silent_s == 0.0
    assert progress_counter.work_done() > before
    now_s[0] = 145.0
    assert background_work.silent_s == 15.0
    go.set()
    assert background_work.result() == "done"
    now_s[0] = 999.0
    assert background_work.silent_s == 0.0
    assert background_work.seconds == 45.0


def test_abandoned_work_ends_at_its_next_piece():
    """With a failure and without a result."""
    begun, go = threading.Event(), threading.Event()
    after = []

    def work(moved):
        begun.set()
        assert go.wait(EVENT_S)
        moved()
        after.append("went on")

    background_work = BackgroundWork(work, failed)
    assert begun.wait(EVENT_S)
    background_work.abandon(0.0)
    go.set()
    with pytest.raises(TrainingFailed, match="RuntimeError: abandoned"):
        background_work.result()
    assert not after


def test_abandoning_work_that_is_stuck_returns():
    """A frozen disk takes no piece: the caller goes on, and the thread is still there."""
    stuck = threading.Event()
    background_work = BackgroundWork(lambda _moved: stuck.wait(EVENT_S), failed)
    background_work.abandon(0.01)
    assert not background_work.is_done
    assert background_work.failure is None
    stuck.set()
    assert background_work.result()


def test_work_that_ended_may_be_abandoned():
    """Its result stays."""
    background_work = BackgroundWork(lambda _moved: "done", failed)
    assert background_work.result() == "done"
    background_work.abandon(EVENT_S)
    assert background_work.is_done
