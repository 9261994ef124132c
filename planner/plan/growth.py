"""What a move to more workers is worth, and how long to watch them before it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# How far wrong the estimates may be, of what will last and of what it takes: by a quarter.
MARGIN = 1.25


@dataclass(frozen=True, kw_only=True)
class ResizeCost:
    """Seconds that one resize of a job takes.

    `KEPT_PROCESSES` and `NEW_PROCESSES` hold until the run has measured its own (`planner.elastic.history`).

    Raises:
        ValueError: one of them is below 0 or not finite.
    """

    grow_s: float
    """training stands still for so long when workers are added"""
    shrink_s: float
    """the same when workers go, with the work that is then done again if they go without notice"""
    lead_s: float = 0.0
    """newcomers start and import for so long beforehand, while training goes on"""

    def __post_init__(self) -> None:
        if not all(0 <= s < math.inf for s in (self.grow_s, self.shrink_s, self.lead_s)):
            raise ValueError(f"a resize takes a finite time of at least 0 s: {self}")


# Medians of six graceful resizes of the demo's model, 2 to 3 workers on two cores, Ray 2.60 (bench/resize.py).
KEPT_PROCESSES = ResizeCost(grow_s=1.4, shrink_s=1.0, lead_s=4.0)
"""workers that stay keep their processes"""
NEW_PROCESSES = ResizeCost(grow_s=9.3, shrink_s=6.7)
"""every worker is started anew"""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A move to a count that is faster: `new_step_s < step_s`.

    All that is saved is counted in seconds of training at the present count, which is also by how much earlier the
    run ends.
    """

    step_s: float
    new_step_s: float
    remaining_s: float
    """what is left of the run, at the present count"""
    cost: ResizeCost

    @property
    def gain(self) -> float:
        """r: seconds won in each second of training at the new count, `step_s / new_step_s - 1`."""
        return self.step_s / self.new_step_s - 1

    @property
    def win_back_s(self) -> float:
        """Until the pause is made up for, from the decision on: `lead + grow + grow / r`."""
        return self.cost.lead_s + self.cost.grow_s * (1 + 1 / self.gain)

    @property
    def break_even_s(self) -> float:
        """How long the room must last, from now on, if a shrink ends it: `lead + grow + (grow + shrink) / r`."""
        return self.win_back_s + self.cost.shrink_s / self.gain

    @property
    def longest_wait_s(self) -> float:
        """No newcomer is watched for longer: by then it has lasted as long as it takes to pay for itself.

        To wait until the wait has cost what the purchase costs is at most twice as bad as knowing the future (ski
        rental: Karlin, Manasse, Rudolph and Sleator 1988).
        """
        return MARGIN * self.break_even_s

    @property
    def pays(self) -> bool:
        """Whether what is left of the run makes up for the pause, if the newcomers stay."""
        return self.remaining_s > MARGIN * self.win_back_s

    def saved_s(self, lasts_s: float, delay_s: float = 0.0) -> float:
        """Seconds saved if the move is decided in `delay_s` and the room for it ends `lasts_s` after that.

        Before the pause began, a move that has become impossible is called off and costs nothing. After it, a shrink
        follows, unless the run has ended by then.
        """
        cost, left_s = self.cost, self.remaining_s - delay_s
        paused_until_s = cost.lead_s + cost.grow_s
        end_s = paused_until_s + (left_s - cost.lead_s) / (1 + self.gain)
        if lasts_s >= end_s:
            return left_s - end_s
        if lasts_s < cost.lead_s:
            return 0.0
        if lasts_s < paused_until_s:
            return cost.lead_s - lasts_s - cost.shrink_s
        return self.gain * (lasts_s - paused_until_s) - cost.grow_s - cost.shrink_s

    def wait_s(self, ended_s: Sequence[float], age_s: float) -> float:
        """The age at which to move, at least `age_s`, that would have served best so far.

        `ended_s` are the lengths of earlier spells of room for that count; the present one is `age_s` old. Each
        earlier one that was longer is taken as a forecast of the present one, and beside them stands one more, in
        which the newcomers stay: with no history, or one of spells that paid, the best time is now. Waiting can only be
        better than moving at once where it outlasts a spell that did not pay, so only the ends of spells are tried.
        """
        longest = self.longest_wait_s
        if age_s >= longest:
            return age_s
        # A spell of 10 s stands for any of up to 12.5 s.
        ends = [MARGIN * lasted for lasted in ended_s if MARGIN * lasted > age_s]
        waits = sorted({age_s, *(min(end, longest) for end in ends)})

        def would_save_s(wait_s: float) -> float:
            forecasts = [max(0.0, end / MARGIN - wait_s) for end in ends if end > wait_s]
            delay_s = wait_s - age_s
            return self.saved_s(math.inf, delay_s) + sum(self.saved_s(lasts, delay_s) for lasts in forecasts)

        return max(waits, key=would_save_s)

    def settled_s(self, rises_s: Sequence[float], start_s: float) -> float:
        """Until when to wait for more, after the last of `rises_s`, if room for this count began at `start_s`.

        Another arrival within a pause saves a whole one, with probability p; waiting for it gives up r of a pause. p is
        the share of rises that another followed so soon, and beside those seen stands one more that was. When the
        waiting itself has given up a whole pause, it is over.
        """
        gaps = [later - earlier for earlier, later in pairwise(rises_s)]
        followed = sum(gap <= self.cost.grow_s for gap in gaps)
        if not rises_s or (followed + 1) / (len(gaps) + 1) <= self.gain:
            return start_s
        return min(rises_s[-1] + self.cost.grow_s, start_s + self.cost.grow_s / self.gain)
