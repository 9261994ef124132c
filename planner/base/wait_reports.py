"""Messages about a wait, at growing intervals, so that even a wait of weeks is explained without filling a log."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_MOST_S = 3600.0


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
