"""Whether the controller of the workers still works: it sends heartbeats, and the driver listens.

Ray reports a controller that dies, but not one that is suspended or waits forever. Then all workers would stand still,
because their reports are not collected, and the driver would wait forever.
"""

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Self

from planner.base.text import duration
from planner.base.wait_reports import WaitReports
from planner.events.failures import ControllerSilent
from planner.wording.event_text import text_of

_BEAT_S = 5.0
# One iteration of the controller's loop may start a group (limit 15 minutes) or end one.
_TURN_MOST_S = 1800.0
_SAID_AFTER_S = 30.0
# The driver is on the same machine, so a busy machine delays both.
_GIVE_UP_S = 300.0
# Limit for the first beat. Ray starts the process in seconds, or in minutes if its libraries are on a slow disk.
_BEGIN_MOST_S = 1800.0
# The driver listens every 5 s. After a longer gap than this, the driver itself was suspended, perhaps together with the
# controller. That time does not count as silence.
_LOOK_MOST_S = 15.0


class HeartbeatSender:
    """The controller's side: a thread that beats as long as the controller's loop makes progress.

    The driver may make it, and pickle it for the controller's process.
    """

    def __init__(self, beat: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._beat, self._clock = beat, clock
        self._turned_s = clock()

    def start(self) -> None:
        """Start the thread. It beats until the process ends."""
        self.turned()
        threading.Thread(target=self._run, name="planner-heartbeat", daemon=True).start()

    def turned(self) -> None:
        """Record that the loop has started another iteration."""
        self._turned_s = self._clock()

    def beats(self) -> bool:
        """Whether the loop made progress within the last 30 minutes."""
        return self._clock() - self._turned_s < _TURN_MOST_S

    def _run(self) -> None:
        for number in itertools.count():
            if self.beats():
                with contextlib.suppress(Exception):  # if the head does not answer, the next beat tries again
                    self._beat(str(number))
            time.sleep(_BEAT_S)


class HeartbeatMonitor:
    """The driver's side: a context manager around `fit`. It ends a silent controller, so that `fit` returns."""

    def __init__(self, heard: Callable[[], str], say: Callable[[str], None]) -> None:
        self._heard, self._say = heard, say
        self._end: Callable[[], None] | None = None
        self._ended = threading.Event()
        self._last, self._since_s = "", 0.0
        self._looked_s = math.inf
        self._unheard_s: float | None = None
        self._reminders, self._head_reminders = WaitReports(_SAID_AFTER_S), WaitReports(_SAID_AFTER_S)
        self.verdict: ControllerSilent | None = None
        """why the driver ended the controller. None if it did not"""

    def listen_to(self, end: Callable[[], None]) -> None:
        """Listen to a controller that was started. `end` ends it."""
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
            text = self.judge(self._heard(), time.monotonic())
        except Exception:  # noqa: BLE001  # the head does not answer, which says nothing about the controller
            text = self.unheard(began_s, time.monotonic())
        with contextlib.suppress(Exception):  # the terminal may be closed
            if text:
                self._say(text)

    def _has_ended_it(self) -> bool:
        """End the controller. False if the head does not answer: the caller tries again."""
        with contextlib.suppress(Exception):
            if self._end is not None:
                self._end()
            return True
        return False

    def unheard(self, began_s: float, now_s: float) -> str:
        """The text to show when the head, asked at `began_s`, did not answer. Empty if none is due."""
        self._unheard_s = began_s if self._unheard_s is None else self._unheard_s
        silent_s = now_s - self._unheard_s
        if not self._head_reminders.due(silent_s):
            return ""
        return f"the head of the Ray cluster has not answered for {duration(silent_s)}. planner keeps asking"

    def judge(self, beat: str, now_s: float) -> str:
        """The text to show about the last beat, empty if none is due. Sets `verdict` after too long a silence."""
        self._unheard_s = None
        self._head_reminders.reset()
        self._since_s += max(now_s - self._looked_s - _LOOK_MOST_S, 0.0)
        is_first, self._looked_s = self._looked_s == math.inf, now_s
        if beat != self._last or is_first:
            self._last, self._since_s = beat, now_s
            self._reminders.reset()
            return ""
        silent_s = now_s - self._since_s
        most_s = _GIVE_UP_S if beat else _BEGIN_MOST_S
        silence = ControllerSilent(silent_s=silent_s, has_started=bool(beat))
        if silent_s > most_s:
            self.verdict = silence
            return f"{text_of(silence)}: planner ends it"
        if not self._reminders.due(silent_s):
            return ""
        overloaded = "is it suspended, or its machine overloaded?"
        return f"{text_of(silence)} ({overloaded}). planner ends it after {duration(most_s)}"
