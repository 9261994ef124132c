"""Whether the process that controls the workers still works: it beats, and the driver listens.

A controller that dies, Ray reports. One that is suspended, or that waits where nothing will come, it takes for alive:
every worker would stand still behind it, since reports are collected by nobody, and the driver would wait for ever.
"""

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Self

from planner.base.reminders import Reminders
from planner.base.text import duration

_BEAT_S = 5.0
# One turn of the controller's loop starts a group, which is given up after 15 minutes, or ends one.
_TURN_MOST_S = 1800.0
_SAID_AFTER_S = 30.0
# The driver is on the same machine: what starves one of them for so long starves both.
_GIVE_UP_S = 300.0
# Until the first beat: Ray starts the process in seconds, or in minutes where its libraries come from a slow disk.
_BEGIN_MOST_S = 1800.0
# Between two looks of the driver's own. What is more, it was suspended itself, and perhaps the controller with it.
_LOOK_MOST_S = 15.0


class Heartbeat:
    """The controller's side: beats from a thread of its own, as long as the loop turns."""

    def __init__(self, beat: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._beat, self._clock = beat, clock
        self._turned_s = clock()

    def start(self) -> None:
        """Beat until the process ends."""
        threading.Thread(target=self._run, name="planner-heartbeat", daemon=True).start()

    def turned(self) -> None:
        """The loop has come round."""
        self._turned_s = self._clock()

    def beats(self) -> bool:
        """Whether it is well."""
        return self._clock() - self._turned_s < _TURN_MOST_S

    def _run(self) -> None:
        for number in itertools.count():
            if self.beats():
                with contextlib.suppress(Exception):  # a head that cannot be reached now is tried again
                    self._beat(str(number))
            time.sleep(_BEAT_S)


class Listener:
    """The driver's side: a context manager around `fit`. Who falls silent is ended, so that `fit` returns."""

    def __init__(self, heard: Callable[[], str], say: Callable[[str], None]) -> None:
        self._heard, self._say = heard, say
        self._end: Callable[[], None] | None = None
        self._ended = threading.Event()
        self._last, self._since_s = "", 0.0
        self._looked_s = math.inf
        self._unheard_s: float | None = None
        self._reminders, self._head_reminders = Reminders(_SAID_AFTER_S), Reminders(_SAID_AFTER_S)
        self.verdict = ""
        """why the controller was ended; empty if it was not"""

    def listen_to(self, end: Callable[[], None]) -> None:
        """A controller was started; `end` ends it."""
        self._end = end
        threading.Thread(target=self._run, name="planner-listen", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(_BEAT_S):
            if not self.verdict:
                self._listen()
            if self.verdict and self._has_ended_it():
                return

    def _listen(self) -> None:
        began_s = time.monotonic()
        try:
            words = self.judge(self._heard(), time.monotonic())
        except Exception:  # noqa: BLE001  # a head that cannot be asked says nothing about the controller
            words = self.unheard(began_s, time.monotonic())
        with contextlib.suppress(Exception):  # a terminal that is gone
            if words:
                self._say(words)

    def _has_ended_it(self) -> bool:
        """Whether there is nothing left to do; a head that cannot be reached now is asked again."""
        with contextlib.suppress(Exception):
            if self._end is not None:
                self._end()
            return True
        return False

    def unheard(self, began_s: float, now_s: float) -> str:
        """What to say when the head was asked at `began_s`, and there is no answer."""
        self._unheard_s = began_s if self._unheard_s is None else self._unheard_s
        silent_s = now_s - self._unheard_s
        if not self._head_reminders.due(silent_s):
            return ""
        return f"the head of the Ray cluster has not answered for {duration(silent_s)}; it is asked again"

    def judge(self, beat: str, now_s: float) -> str:
        """What to say of the beat that was heard last; sets `verdict` when it is enough."""
        self._unheard_s = None
        self._head_reminders.reset()
        self._since_s += max(now_s - self._looked_s - _LOOK_MOST_S, 0.0)
        is_first, self._looked_s = self._looked_s == math.inf, now_s
        if beat != self._last or is_first:
            self._last, self._since_s = beat, now_s
            self._reminders.reset()
            return ""
        silent_s = now_s - self._since_s
        what, most_s = ("answered", _GIVE_UP_S) if beat else ("begun", _BEGIN_MOST_S)
        silence = f"the process that controls the workers has not {what} for {duration(silent_s)}"
        if silent_s > most_s:
            self.verdict = silence
            return f"{silence}: it is ended"
        if not self._reminders.due(silent_s):
            return ""
        return f"{silence} (suspended, or its machine has no time for it?); after {duration(most_s)} it is ended"
