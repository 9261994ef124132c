"""Seconds per step at any world size: measured where the run had that size, fitted elsewhere."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from statistics import fmean

from planner.plan.plan import Plan

# The prior of the fit: a tenth of a measurement which says that a step of no samples takes no time. With one measured
# count it makes time proportional to cost. Two counts far apart overrule it. Two that are close together hold more
# noise than slope, and hardly change it.
_PRIOR_WEIGHT = 0.1


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """One job's seconds per optimizer step.

    Raises:
        ValueError: a measured time is not above 0 and finite.
    """

    measured: Mapping[int, float] = field(default_factory=dict)
    """world size -> median seconds per step"""
    on_one_machine: bool = False
    """workers share one machine's cores. Fitted times assume that each node has its own cores."""

    def __post_init__(self) -> None:
        for world_size, seconds in self.measured.items():
            if not (seconds > 0 and math.isfinite(seconds)):
                raise ValueError(f"world size {world_size} has {seconds} s per step: it must be finite and above 0")

    def seconds_per_step(self, plan: Plan) -> float:
        """Seconds per step of a plan: the measured median at its world size, else a fit by its step cost.

        Between two measured costs the fit is linear. Beyond them it follows `t = fixed + per_sample * cost`, scaled to
        meet the nearest measurement. With nothing measured it is one second per sample of cost, so only ratios mean
        anything.
        """
        if plan.world_size in self.measured:
            return self.measured[plan.world_size]
        points = self._by_cost(plan)
        if not points:
            return float(plan.work)
        below = [point for point in points if point[0] <= plan.work]
        above = [point for point in points if point[0] >= plan.work]
        if below and above:
            return _between(below[-1], above[0], plan.work)
        cost, seconds = below[-1] if below else above[0]
        fixed_s, per_sample_s = _law(points)
        return seconds * (fixed_s + per_sample_s * plan.work) / (fixed_s + per_sample_s * cost)

    def most_seconds_per_step(self, plan: Plan) -> float:
        """Seconds per step that a limit must allow for: `seconds_per_step`, and no less than what the cost says.

        Measured times may hardly depend on the cost, where collectives take most of a step. The fit then says the same
        of much larger costs. So beyond the largest measured cost, a step may take as much longer as its cost is larger.
        """
        expected_s, points = self.seconds_per_step(plan), self._by_cost(plan)
        if plan.world_size in self.measured or not points:
            return expected_s
        cost, seconds = points[-1]
        return max(expected_s, seconds * plan.work / cost)

    def _by_cost(self, plan: Plan) -> list[tuple[float, float]]:
        """`(work, mean seconds)` by rising cost. World sizes of equal work are one point."""
        points = sorted((plan.at(world_size).work, seconds) for world_size, seconds in self.measured.items())
        return [(cost, fmean(s for _, s in group)) for cost, group in groupby(points, key=lambda point: point[0])]


def _between(below: tuple[float, float], above: tuple[float, float], cost: float) -> float:
    if below[0] == above[0]:
        return below[1]
    along = (cost - below[0]) / (above[0] - below[0])
    return below[1] * (1 - along) + above[1] * along


def _law(points: list[tuple[float, float]]) -> tuple[float, float]:
    """`(fixed, per_sample)` of `t = fixed + per_sample * cost`, by least squares over the points and the prior.

    fixed        seconds of a step at any cost: the optimizer, collectives, a share of the commit. 0 or more
    per_sample   seconds of forward and backward of one sample on one worker. 0 or more

    No term rises with W (collectives over more workers), so the fit is optimistic far beyond the measured sizes, until
    the first measurement there. Times that rise as the cost falls (workers that share a CPU) give `per_sample = 0`:
    more workers promise no gain.
    """
    weighed = [(1.0, float(cost), seconds) for cost, seconds in points] + [(_PRIOR_WEIGHT, 0.0, 0.0)]
    total = sum(w for w, _, _ in weighed)
    mean_cost = sum(w * c for w, c, _ in weighed) / total
    mean_s = sum(w * t for w, _, t in weighed) / total
    spread = sum(w * (c - mean_cost) ** 2 for w, c, _ in weighed)
    per_sample_s = max(0.0, sum(w * (c - mean_cost) * (t - mean_s) for w, c, t in weighed) / spread)
    fixed_s = mean_s - per_sample_s * mean_cost
    if fixed_s <= 0:
        return 0.0, sum(w * c * t for w, c, t in weighed) / sum(w * c * c for w, c, _ in weighed)
    return fixed_s, per_sample_s
