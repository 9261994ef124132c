"""Messages about a wait, at growing intervals, so that even a wait of weeks is explained without filling a log."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

_MOST_S = 3600.0
SILENCE_S = 3.0
"""after this long without a line, a command says what it is doing"""
_LOOK_S = 0.25


class WaitReports:
    """When to mention a wait: after `first_s` seconds, then each time that it has doubled, but at least hourly."""

    def __init__(self, first_s: float) -> None:
        self._first_s = self.next_s = first_s
        """the length of the wait, in seconds, at which it is mentioned next"""

    def due(self, waited_s: float) -> bool:
        """Whether to mention a wait of `waited_s` seconds now. If so, the next reminder is scheduled."""
        if waited_s < self.next_s:
            return False
        self.next_s = min(2 * waited_s, waited_s + _MOST_S)
        return True

    def reset(self) -> None:
        """Begin a new wait."""
        self.next_s = self._first_s


@contextmanager
def reminded(say: Callable[[str], None], message: str, first_s: float = 10.0) -> Iterator[None]:
    """While the block runs, `say` the message and how long it has run. A thread does so, as the block may hang.

    Args:
        say: prints or logs a line.
        message: what the block waits for, and what the user can do.
        first_s: seconds until the first reminder.
    """
    is_over = threading.Event()

    def remind() -> None:
        reports, waited_s = WaitReports(first_s), 0.0
        while not is_over.wait(reports.next_s - waited_s):
            waited_s = reports.next_s
            reports.due(waited_s)
            say(f"{message} ({waited_s:.0f} s so far)")

    threading.Thread(target=remind, name="planner-remind", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


class Activity:
    """A context manager that says what is being done while nothing else is said, at growing intervals.

    Args:
        say: prints a line.
        what: what is being done.
        clock: seconds. Only differences count.
        is_over: set at the end. Its `wait` paces the thread.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        what: str,
        clock: Callable[[], float] = time.monotonic,
        is_over: threading.Event | None = None,
    ) -> None:
        self._say, self._what, self._clock = say, what, clock
        self._reports = WaitReports(SILENCE_S)
        self._since_s = self._said_s = clock()
        self._is_named = False
        self._is_over = is_over or threading.Event()
        self._thread = threading.Thread(target=self._run, name="planner-activity", daemon=True)

    def begin(self, what: str) -> None:
        """Something else is being done from now on. Its time counts from 0.

        It is named when nothing was said for `SILENCE_S`, so many short works in turn are not silent either.
        """
        self._reports.reset()
        self._what, self._since_s, self._is_named = what, self._clock(), False

    def update(self, what: str) -> None:
        """The same work has come further. Its time goes on."""
        self._what = what

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            self._look(self._clock())

    def _look(self, now_s: float) -> None:
        waited_s, is_silent = now_s - self._since_s, now_s - self._said_s >= SILENCE_S
        is_due = self._reports.due(waited_s)
        if not is_due and (self._is_named or not is_silent):
            return
        if not is_due:
            self._reports.next_s = waited_s + SILENCE_S
        self._is_named, self._said_s = True, now_s
        with suppress(OSError):  # a closed pipe or a full disk: the command meets it at its own next line
            self._say(f"{self._what} ({waited_s:.0f} s so far)" if waited_s >= 1 else self._what)
