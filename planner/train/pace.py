"""When to commit: at a fixed number of steps, or at an interval chosen from measured save times and lost workers."""

import math
import time
from collections import deque
from collections.abc import Callable
from statistics import median

from planner.events.saves import CommitInterval, MeasuredInterval
from planner.plan.interval import checkpoint_interval
from planner.story.earlier import EarlierGenerations

# When to commit first in a run. The formula needs the time of a save, which only that commit shows. Losing 10 s of work
# costs no more than starting the workers again.
FIRST_COMMIT_S = 10.0
# The most work at risk, whatever was measured. The formula assumes that losses are random, but people, prices and
# maintenance interrupt a quiet run too. Where a save takes 5 s, this limit costs 0.3% of the time.
MOST_WORK_S = 30 * 60.0
# Medians are taken over so many, since a process's first step and first save take longer than others.
_NUM_STEPS = 50
_NUM_SAVES = 3
# Fewer steps of a generation say too little about the others.
_FEWEST_STEPS = 3


class EverySteps:
    """A commit at every multiple of a fixed number of steps."""

    def __init__(self, every_steps: int) -> None:
        self._every_steps = every_steps

    def due(self, step: int, *, is_writing: bool) -> bool:
        """Whether to commit after `step` steps. While the last commit is still being written, the next one waits."""
        del is_writing
        return step % self._every_steps == 0

    def did_step(self, seconds: float) -> None:
        """Do nothing. The pace never changes."""

    def did_hold(self, step: int) -> None:
        """Do nothing."""

    def did_land(self, paused_s: float, write_s: float) -> None:
        """Do nothing."""


class MeasuredPace:
    """A commit at the interval of `checkpoint_interval`, which is computed again at every step.

    Args:
        past: measurements of earlier generations.
        step: the committed step at which this generation begins.
        last_step: the run's last step, which is always committed.
        clock: returns seconds. Only differences matter.
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
        self._held = self._done = step
        self._last_step = last_step
        # What a save costs training, and how long it takes in the background.
        self._save_times = deque(past.save_times, maxlen=_NUM_SAVES)
        self._write_times = deque(past.write_times, maxlen=_NUM_SAVES)
        self._step_times: deque[float] = deque(maxlen=_NUM_STEPS)
        self._times_beside_write: deque[float] = deque(maxlen=_NUM_STEPS)
        self._num_beside_write = 0
        self._is_writing = False
        self._work_s = 0.0
        self._interval_steps = 0  # 0: not known yet
        # Brought by another thread, and counted by the training thread, which alone uses the deques.
        self._lessons: EarlierGenerations | None = None
        self._told_steps = 0
        self._told_s = 0.0

    def learn(self, past: EarlierGenerations) -> None:
        """Count the measurements of earlier generations. Any thread may call it, once."""
        self._lessons = past

    def _take_lessons(self) -> None:
        past, self._lessons = self._lessons, None
        if past is None:
            return
        self._past = past
        for known, earlier in ((self._save_times, past.save_times), (self._write_times, past.write_times)):
            newer = list(known)
            known.clear()
            # Earlier ones first: a full deque drops those at its beginning, so newer measurements win.
            known.extend([*earlier, *newer])

    def due(self, step: int, *, is_writing: bool) -> bool:
        """Whether the interval is over or, before the run's first commit, `FIRST_COMMIT_S`.

        While the last commit is still being written, only too much work at risk makes the next one due.
        """
        self._take_lessons()
        # The work is checked too: if a few steps take most of the time, their median is far below the mean.
        if is_writing or self._work_s >= MOST_WORK_S:
            return self._work_s >= MOST_WORK_S
        if not self._save_times:
            return self._clock() - self._started_s >= FIRST_COMMIT_S
        return 0 < self._interval_steps <= step - self._held

    def did_step(self, seconds: float) -> CommitInterval | None:
        """Record a step's time. Returns the new interval if it differs from the last one reported."""
        self._done += 1
        (self._times_beside_write if self._is_writing else self._step_times).append(seconds)
        self._num_beside_write += self._is_writing
        self._work_s += seconds
        if not self._save_times or not self._step_times:
            return None
        step_s = median(self._step_times)
        measured = self._measure(step_s)
        self._interval_steps = steps = min(measured.steps, max(1, int(MOST_WORK_S / step_s)))
        if len(self._step_times) < _FEWEST_STEPS or not self._is_news(steps, step_s):
            return None
        self._told_steps, self._told_s = steps, steps * step_s
        is_beyond = self._held + steps >= self._last_step
        steps_left = int(self._last_step) - self._done if is_beyond else None
        return CommitInterval(steps=steps, work_s=steps * step_s, measured=measured, steps_left=steps_left)

    def did_hold(self, step: int) -> None:
        """Record that a commit began after `step` steps."""
        self._held, self._work_s, self._is_writing, self._num_beside_write = step, 0.0, True, 0

    def did_land(self, paused_s: float, write_s: float) -> None:
        """Record that the commit is durable, `write_s` after it began. It paused training for `paused_s` in all.

        Its cost is the pause, and what the steps beside its write took longer than others.
        """
        self._is_writing = False
        slowed_s = 0.0
        # Over several commits: the noise of one or two steps would make a short write look expensive.
        if self._step_times and len(self._times_beside_write) >= _FEWEST_STEPS:
            slower_s = median(self._times_beside_write) - median(self._step_times)
            slowed_s = max(slower_s, 0.0) * self._num_beside_write
        self._save_times.append(paused_s + slowed_s)
        self._write_times.append(write_s)

    def _measure(self, step_s: float) -> MeasuredInterval:
        return checkpoint_interval(
            save_s=median(self._save_times),
            write_s=median(self._write_times) if self._write_times else 0.0,
            step_s=step_s,
            losses=self._past.losses,
            observed_s=self._past.observed_s + self._clock() - self._started_s,
        )

    def _is_news(self, steps: int, step_s: float) -> bool:
        """Whether no interval was reported yet, or its time has changed by a third and by more than one step."""
        changed = abs(steps * step_s - self._told_s) > self._told_s / 3 and abs(steps - self._told_steps) > 1
        return not self._told_steps or changed


Pace = EverySteps | MeasuredPace
"""when to commit. All workers report times to it, and all follow the decision of rank 0"""
