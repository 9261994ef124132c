"""When to commit: every so many steps, or as often as measured saves and losses make worth while."""

import math
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Protocol

from planner.base.text import counted, duration
from planner.plan import Interval, checkpoint_interval
from planner.store.earlier_generations import EarlierGenerations

# A run's first commit tells what a save takes, and no formula can say when before that is known. To lose 10 s costs no
# more than to start the workers again.
FIRST_COMMIT_S = 10.0
# The formula takes losses for chance, and pauses for time without any. But a run of a quiet week is interrupted by
# people, prices and maintenance, too: whatever was measured, no more work than this is put at risk. Where a save takes
# 5 s, that costs 0.3% of the time.
MOST_WORK_S = 30 * 60.0
# Of either, the median: the first step and the first save of a process take longer than others.
_NUM_STEPS = 50
_NUM_SAVES = 3
# A generation's first step alone says nothing of the others.
_FEWEST_STEPS = 3


class Pace(Protocol):
    """Says when to commit. All workers tell it what they measure, rank 0 asks it, and all do as rank 0 was told."""

    def due(self, step: int) -> bool:
        """Whether to commit when `step` steps are done."""
        ...

    def did_step(self, seconds: float) -> str:
        """A step was done. What a person will want to know of the pace now; empty if nothing."""
        ...

    def did_commit(self, step: int, seconds: float) -> None:
        """A commit of `step` steps was made, and held training up for so long."""
        ...


class EverySteps:
    """As the job says."""

    def __init__(self, every_steps: int) -> None:
        self._every_steps = every_steps

    def due(self, step: int) -> bool:
        """At the multiples of a number."""
        return step % self._every_steps == 0

    def did_step(self, seconds: float) -> str:
        """Changes nothing."""
        del seconds
        return ""

    def did_commit(self, step: int, seconds: float) -> None:
        """Changes nothing."""


class MeasuredPace:
    """By `checkpoint_interval`, chosen anew at every step.

    Args:
        past: what earlier generations saw.
        step: where this one begins, which is committed.
        last_step: the run's last, which is committed whatever the interval is.
        clock: seconds; only differences count.
    """

    def __init__(
        self,
        past: EarlierGenerations,
        step: int,
        last_step: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._past, self._clock = past, clock
        self._started_s = clock()
        self._committed = self._done = step
        self._last_step = last_step
        self._saves_s = deque(past.saves_s, maxlen=_NUM_SAVES)
        self._steps_s: deque[float] = deque(maxlen=_NUM_STEPS)
        self._work_s = 0.0
        self._interval: Interval | None = None
        self._told_steps = 0
        self._told_s = 0.0

    def due(self, step: int) -> bool:
        """When the interval is over, or a run's first seconds are."""
        if not self._saves_s:
            return self._clock() - self._started_s >= FIRST_COMMIT_S
        if self._interval is None:
            return False
        # The work is asked, too: where few steps take most of the time, their median promises too much.
        return step - self._committed >= self._interval.steps or self._work_s >= MOST_WORK_S

    def did_step(self, seconds: float) -> str:
        """Measured; the reason for the interval, if it is another one than was told last."""
        self._done += 1
        self._steps_s.append(seconds)
        self._work_s += seconds
        if not self._saves_s:
            return ""
        step_s = median(self._steps_s)
        self._interval = self._choose(step_s)
        if len(self._steps_s) < _FEWEST_STEPS or not self._is_news(self._interval.steps, step_s):
            return ""
        self._told_steps, self._told_s = self._interval.steps, self._interval.steps * step_s
        if self._committed + self._interval.steps >= self._last_step:
            remain = counted(int(self._last_step) - self._done, "step")
            return f"commits at the end alone, {remain} from here; by measure {self._interval.reason}"
        return f"commits {self._interval.reason}"

    def did_commit(self, step: int, seconds: float) -> None:
        """Measured."""
        self._committed = step
        self._saves_s.append(seconds)
        self._work_s = 0.0

    def _choose(self, step_s: float) -> Interval:
        measured = checkpoint_interval(
            save_s=median(self._saves_s),
            step_s=step_s,
            losses=self._past.losses,
            observed_s=self._past.observed_s + self._clock() - self._started_s,
        )
        most = max(1, int(MOST_WORK_S / step_s))
        if measured.steps <= most:
            return measured
        words = f"about every {duration(most * step_s)}, {counted(most, 'step')} now, the most work that is put at risk"
        return Interval(steps=most, reason=f"{words}; as measured, it would be {measured.reason}")

    def _is_news(self, steps: int, step_s: float) -> bool:
        """Whether none was told, or the time between commits has changed by a third, and not by rounding to a step."""
        changed = abs(steps * step_s - self._told_s) > self._told_s / 3 and abs(steps - self._told_steps) > 1
        return not self._told_steps or changed
