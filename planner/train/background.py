"""Work in a thread beside training: whether it is done, how long it has been silent, and how to end it."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from planner.base import progress_counter
from planner.errors import PlannerError, TrainingFailed

T = TypeVar("T")


# Not an Exception: an `except Exception` of torch or fsspec on its way must not take it for an error of the store.
class Abandoned(BaseException):
    """Raised in the thread to end work that nobody waits for any more."""


class BackgroundWork(Generic[T]):
    """One piece of work, in a thread of its own. A daemon thread, because a frozen disk must not keep a process.

    Args:
        work: gets a function to call after each unit of work. That function may raise `Abandoned`.
        error: makes the error to raise from an exception of the work.
    """

    def __init__(self, work: Callable[[Callable[[], None]], T], error: Callable[[Exception], PlannerError]) -> None:
        self._work, self._make_error = work, error
        self._is_abandoned = False
        self._moved_s = time.monotonic()
        self._result: T | None = None
        self._thread = threading.Thread(target=self._run, name="planner-commit", daemon=True)
        self.failure: PlannerError | None = None
        self.began_s, self.ended_s = time.monotonic(), 0.0
        """by `time.monotonic`. It has not ended: 0"""
        self._ended = threading.Event()
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, with an error or without."""
        return self._ended.is_set()

    @property
    def is_done(self) -> bool:
        """Whether it has ended without an error."""
        return self.has_ended and self.failure is None

    @property
    def silent_s(self) -> float:
        """Seconds since it last moved. 0 once it has ended."""
        return 0.0 if self.has_ended else time.monotonic() - self._moved_s

    @property
    def seconds(self) -> float:
        """How long it took. Call it when it has ended."""
        return self.ended_s - self.began_s

    def wait(self) -> None:
        """Wait for the end, with an error or without."""
        self._ended.wait()

    def result(self) -> T:
        """Wait for the end and return the result.

        Raises:
            PlannerError: it failed.
        """
        self._ended.wait()
        if self.failure is not None:
            raise self.failure
        assert self._result is not None
        return self._result

    def abandon(self, wait_s: float) -> None:
        """End it after the piece that it writes now. Waits at most `wait_s` seconds for that."""
        self._is_abandoned = True
        self._ended.wait(wait_s)

    def _moved(self) -> None:
        self._moved_s = time.monotonic()
        progress_counter.count_work()
        if self._is_abandoned:
            raise Abandoned

    def _error_of(self, error: BaseException) -> PlannerError:
        """The error to raise."""
        if isinstance(error, Abandoned):
            error = RuntimeError("abandoned")
        if not isinstance(error, Exception):
            error = RuntimeError(f"{type(error).__name__}: {error}")
        try:
            return self._make_error(error)
        except Exception:  # noqa: BLE001  # contract: there is always an error, or the others would wait for a result
            return TrainingFailed(f"{type(error).__name__}: {error}")

    def _run(self) -> None:
        try:
            self._result = self._work(self._moved)
        except BaseException as error:  # noqa: BLE001  # contract: work that ended without a failure has a result
            self.failure = self._error_of(error)
        finally:
            del self._work  # it may hold the state
            self.ended_s = time.monotonic()
            # Last: who waits for the event reads the result, the failure and the times without a lock.
            self._ended.set()
