"""Words about a wait, less and less often: a wait of weeks must be explained, and must not fill a log."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_MOST_S = 3600.0


class Reminders:
    """Says when a wait is to be mentioned: after `first_s` seconds, then each time that it is twice as long; hourly."""

    def __init__(self, first_s: float) -> None:
        self._first_s = self.next_s = first_s
        """the length of the wait at which it is mentioned again"""

    def due(self, waited_s: float) -> bool:
        """Whether to mention it now."""
        if waited_s < self.next_s:
            return False
        self.next_s = min(2 * waited_s, waited_s + _MOST_S)
        return True

    def reset(self) -> None:
        """Another wait begins."""
        self.next_s = self._first_s


@contextmanager
def reminded(say: Callable[[str], None], words: str, first_s: float = 10.0) -> Iterator[None]:
    """While the block lasts, `say` how long it has: from another thread, since a call into a hung disk never returns.

    `words` say what is waited for, and what to do.
    """
    is_over = threading.Event()

    def remind() -> None:
        reminders, waited_s = Reminders(first_s), 0.0
        while not is_over.wait(reminders.next_s - waited_s):
            waited_s = reminders.next_s
            reminders.due(waited_s)
            say(f"{words} ({waited_s:.0f} s so far)")

    threading.Thread(target=remind, name="planner-remind", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
