"""What a resize to more workers saves, and how long to wait before it. Used by `planner.plan.revise`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Estimates of how long workers stay and what a resize costs may be wrong by a quarter.
MARGIN = 1.25


@dataclass(frozen=True, kw_only=True)
class ResizeCost:
    """Seconds that one resize of a job takes.

    `KEPT_PROCESSES` and `NEW_PROCESSES` are used until the run has measured its own (`planner.elastic.history`).

    Raises:
        ValueError: a time is below 0 or not finite.
    """

    grow_s: float
    """pause of training when workers are added"""
    shrink_s: float
    """pause when workers leave, plus the work that is done again if they leave without notice"""
    lead_s: float = 0.0
    """time in which new workers start and import while training continues"""

    def __post_init__(self) -> None:
        if not all(0 <= s < math.inf for s in (self.grow_s, self.shrink_s, self.lead_s)):
            raise ValueError(f"the times of a resize must be finite and 0 s or more: {self}")


# Medians of six graceful resizes of the demo's model, 2 to 3 workers on two cores, Ray 2.60 (bench/resize.py).
KEPT_PROCESSES = ResizeCost(grow_s=1.4, shrink_s=1.0, lead_s=4.0)
"""when workers that stay keep their processes"""
NEW_PROCESSES = ResizeCost(grow_s=9.3, shrink_s=6.7)
"""when every worker starts a new process"""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A resize to a faster worker count: `new_step_s < step_s`.

    Savings are in seconds of training at the current count: the run ends that much earlier.
    """

    step_s: float
    new_step_s: float
    remaining_s: float
    """the rest of the run at the current count"""
    cost: ResizeCost
    exposure: float = 0.0
    """how many more nodes can be lost, as a part of the current count: `new / current - 1`"""

    @property
    def gain(self) -> float:
        """r: seconds saved in each second of training at the new count, `step_s / new_step_s - 1`."""
        return self.step_s / self.new_step_s - 1

    @property
    def win_back_s(self) -> float:
        """Seconds from the decision until the pause is won back: `lead + grow + grow / r`."""
        return self.cost.lead_s + self.cost.grow_s * (1 + 1 / self.gain)

    @property
    def break_even_s(self) -> float:
        """Seconds that the workers must stay to pay for a grow and a shrink: `lead + grow + (grow + shrink) / r`."""
        return self.win_back_s + self.cost.shrink_s / self.gain

    @property
    def needed_s(self) -> float:
        """Seconds without a forced restart that pay for the growth: `lead + grow + (grow + exposure * shrink) / r`.

        The group is hit sooner or later at any count, and the restart then takes all nodes. So only the losses on the
        nodes that the growth adds count against it.
        """
        return self.win_back_s + self.exposure * self.cost.shrink_s / self.gain

    @property
    def longest_wait_s(self) -> float:
        """The longest time in seconds to watch new workers before a resize: they have then lasted long enough to pay.

        To wait until the wait has cost what the resize costs is at most twice as bad as knowing the future (ski
        rental: Karlin, Manasse, Rudolph and Sleator 1988).
        """
        return MARGIN * self.break_even_s

    @property
    def pays(self) -> bool:
        """Whether the rest of the run wins the pause back if the new workers stay."""
        return self.remaining_s > MARGIN * self.win_back_s

    def saved_s(self, lasts_s: float, delay_s: float = 0.0) -> float:
        """Seconds saved if the resize is decided in `delay_s` and its workers leave `lasts_s` after that.

        If they leave before the pause begins, the resize is called off and costs nothing. If they leave later, a
        shrink follows, unless the run has ended.
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

    def wait_s(self, past_spells: Sequence[float], age_s: float) -> float:
        """The age in seconds, at least `age_s`, at which a resize would have saved most so far.

        Each earlier interval longer than `age_s` is a forecast of the current one. One more forecast says that the
        workers stay. So the best time is now if there is no history, or if all intervals paid. Waiting can be better
        only where it outlasts an interval that did not pay, so only the ends of intervals are tried.

        Args:
            past_spells: lengths of earlier intervals with room for the count.
            age_s: age of the current interval.
        """
        longest = self.longest_wait_s
        if age_s >= longest:
            return age_s
        # An interval of 10 s stands for any of up to 12.5 s.
        ends = [MARGIN * lasted for lasted in past_spells if MARGIN * lasted > age_s]
        waits = sorted({age_s, *(min(end, longest) for end in ends)})

        def would_save_s(wait_s: float) -> float:
            forecasts = [max(0.0, end / MARGIN - wait_s) for end in ends if end > wait_s]
            delay_s = wait_s - age_s
            return self.saved_s(math.inf, delay_s) + sum(self.saved_s(lasts, delay_s) for lasts in forecasts)

        return max(waits, key=would_save_s)

    def settled_s(self, rise_times: Sequence[float], start_s: float) -> float:
        """The time until which to wait for more workers.

        If another worker arrives within the length of a pause (probability p), a whole pause is saved. The wait costs r
        of a pause. p is the share of rises that another one followed within a pause, counting one assumed success. The
        wait ends when it has itself cost a whole pause.

        Args:
            rise_times: times at which the count rose, oldest first.
            start_s: time since which there is room for this count.
        """
        gaps = [later - earlier for earlier, later in pairwise(rise_times)]
        followed = sum(gap <= self.cost.grow_s for gap in gaps)
        if not rise_times or (followed + 1) / (len(gaps) + 1) <= self.gain:
            return start_s
        return min(rise_times[-1] + self.cost.grow_s, start_s + self.cost.grow_s / self.gain)
