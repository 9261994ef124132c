"""Seconds per step at any world size: measured where the run had that size, by the step model elsewhere."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

from planner.plan.plan import Plan
from planner.plan.step_time import MeasuredSize, StepModel, fit


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """One job's seconds per optimizer step.

    Raises:
        ValueError: a measured time is not above 0 and finite.
    """

    measured: Mapping[int, float] = field(default_factory=dict)
    """world size -> median seconds per step"""
    plans: Mapping[int, Plan] = field(default_factory=dict)
    """world size -> the plan that was measured there. A size that is not in it had the plan of the job that is asked"""
    waited: Mapping[int, float] = field(default_factory=dict)
    """world size -> seconds of such a step in collectives. Only sizes where that is known"""
    model: StepModel | None = None
    """the step model, of a rates file. None: it is fitted to what is measured"""
    has_own_caps: bool = False
    """each size has its own caps on micro-batches, those in `plans`, so those of a plan that is asked do not count. A
    size that is not in `plans` has the caps of the next smaller one, else of the smallest"""
    on_one_machine: bool = False
    """workers share one machine's cores. Fitted times assume that each node has its own cores."""

    def __post_init__(self) -> None:
        for world_size, seconds in self.measured.items():
            if not (seconds > 0 and math.isfinite(seconds)):
                raise ValueError(f"world size {world_size} has {seconds} s per step: it must be finite and above 0")

    def seconds_per_step(self, plan: Plan) -> float:
        """Seconds per step of a plan: the measured median at its world size, else by the step model.

        Between two measured costs it lies between their times, where the model puts it. Beyond them it is the model's
        time, scaled to meet the nearest measurement. With nothing measured and no model it is one second per sample of
        cost, so only ratios mean anything.

        Times that were measured with other micro-batches, and so with more or fewer rounds, are first scaled as the
        model's time is.
        """
        plan = self._with_own_caps(plan)
        if self.has(plan):
            return self.measured[plan.world_size]
        law = self.law(plan)
        if plan.world_size in self.measured:
            return self._seconds_at(plan, law)
        modelled, points = law.seconds_per_step(plan), self._by_cost(plan, law)
        below = [point for point in points if point.cost <= plan.work]
        above = [point for point in points if point.cost >= plan.work]
        if below and above:
            return _between(below[-1], above[0], plan.work, modelled)
        nearest = next(iter([*below[-1:], *above[:1]]), None)
        return modelled if nearest is None else nearest.seconds * modelled / nearest.modelled

    def _with_own_caps(self, plan: Plan) -> Plan:
        if not (self.has_own_caps and self.plans):
            return plan
        below = [size for size in self.plans if size <= plan.world_size]
        return self.plans[max(below) if below else min(self.plans)].at(plan.world_size)

    def has(self, plan: Plan) -> bool:
        """Whether this very plan was measured."""
        return plan.world_size in self.measured and self._measured_plan(plan).splits_like(plan)

    def _measured_plan(self, plan: Plan) -> Plan:
        return self.plans.get(plan.world_size, plan)

    def _seconds_at(self, plan: Plan, law: StepModel) -> float:
        """Seconds of a plan whose world size was measured."""
        was, seconds = self._measured_plan(plan), self.measured[plan.world_size]
        if was.splits_like(plan):
            return seconds
        return seconds * law.seconds_per_step(plan) / law.seconds_per_step(was)

    def most_seconds_per_step(self, plan: Plan) -> float:
        """Seconds per step that a limit must allow for: `seconds_per_step`, and no less than what the cost says.

        Measured times may hardly depend on the cost, where collectives take most of a step. The fit then says the same
        of much larger costs. So beyond the largest measured cost, a step may take as much longer as its cost is larger.
        """
        plan = self._with_own_caps(plan)
        expected_s = self.seconds_per_step(plan)
        if plan.world_size in self.measured or not self.measured:
            return expected_s
        most = self._by_cost(plan, self.law(plan))[-1]
        return max(expected_s, most.seconds * plan.work / most.cost)

    def law(self, plan: Plan) -> StepModel:
        """The step model: the given one, or its fit to what is measured for plans of this job."""
        return self.model or fit(
            [
                MeasuredSize(plan=self._measured_plan(plan.at(size)), seconds=seconds, waited_s=self.waited.get(size))
                for size, seconds in self.measured.items()
            ]
        )

    def _by_cost(self, plan: Plan, law: StepModel) -> "list[_Point]":
        """The measured sizes by rising cost. World sizes of equal work are one point."""
        theirs = map(plan.at, self.measured)
        found = [_Point(there.work, self._seconds_at(there, law), law.seconds_per_step(there)) for there in theirs]
        groups = (list(group) for _, group in groupby(sorted(found), key=lambda point: point.cost))
        return [
            _Point(group[0].cost, fmean(p.seconds for p in group), fmean(p.modelled for p in group)) for group in groups
        ]


class _Point(NamedTuple):
    """What was measured at one cost, and what the model says there. Both in seconds per step."""

    cost: float
    seconds: float
    modelled: float


def _between(below: _Point, above: _Point, cost: float, modelled: float) -> float:
    """The time at a cost between two measured ones: as far along as the model's time is, or as the cost is."""
    if below.cost == above.cost:
        return below.seconds
    along = (cost - below.cost) / (above.cost - below.cost)
    if below.modelled != above.modelled:
        along = (modelled - below.modelled) / (above.modelled - below.modelled)
    along = min(max(along, 0.0), 1.0)
    return below.seconds * (1 - along) + above.seconds * along
