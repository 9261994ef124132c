"""What one run measured of its steps, in a form that predicts those of its job at other sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from planner.plan.factory import BatchSizes, make_plan
from planner.plan.lowered_caps import Caps
from planner.plan.plan import Plan
from planner.plan.speed import Speeds
from planner.plan.step_time import MeasuredSize, StepModel, Term

Setting = str | int | float | bool | None

Origin = Literal["measured", "rounds", "between", "beyond", "model"]
"""where a step's seconds come from: the run had that plan, it had that size with other micro-batches, the cost lies
between two measured ones, it lies beyond them, or the rates have no measured size of this batch"""


@dataclass(frozen=True, kw_only=True)
class SizeTimes:
    """The typical steps of a run at one world size."""

    world_size: int
    steps: int
    seconds: float
    """the median of a step, without commits"""
    caps: Caps
    """on the micro-batches of these steps"""
    waited_s: float = 0.0
    """of it in collectives. 0 if not known"""

    def plan(self, sizes: BatchSizes) -> Plan:
        """The plan of these steps, of a job with these batch sizes."""
        sizes = replace(sizes, max_micro=self.caps.max_micro, max_tokens=self.caps.max_tokens)
        return make_plan(sizes, self.world_size)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The step model of a job, and what it was fitted to."""

    run: str
    """its folder or URL. Empty if a person wrote the rates"""
    job: str
    """the job's name"""
    settings: Mapping[str, Setting]
    """the settings of that job that the time of a sample depends on, by dotted key (`planner.job.step_settings`)"""
    sizes: BatchSizes
    """of the measured steps. The caps are those of the run's newest generation"""
    model: StepModel
    measured: tuple[SizeTimes, ...] = ()
    """by rising world size"""
    sample_tokens: Term | None = None
    """tokens of a mean sample, without padding. None if not known"""
    epoch_samples: int = 0
    """samples of an epoch of the run's data. 0 if not known"""

    def speeds(self, sizes: BatchSizes) -> Speeds:
        """Seconds per step of a job with these batch sizes. Measured times count if only the caps differ."""
        if sizes.apart_from_caps != self.sizes.apart_from_caps:
            return Speeds(model=self.model)
        return Speeds(
            measured={each.world_size: each.seconds for each in self.measured},
            plans={each.world_size: each.plan(self.sizes) for each in self.measured},
            model=self.model,
        )

    def origin(self, plan: Plan, sizes: BatchSizes) -> Origin:
        """Where `speeds(sizes)` has the seconds of this plan from."""
        speeds = self.speeds(sizes)
        if not speeds.measured:
            return "model"
        if plan.world_size in speeds.measured:
            return "measured" if speeds.has(plan) else "rounds"
        costs = [plan.at(each.world_size).work for each in self.measured]
        return "between" if min(costs) <= plan.work <= max(costs) else "beyond"

    def found_caps(self, world_size: int) -> Caps:
        """The caps of the run's group of this size, else of the next smaller one, else of the smallest one.

        For jobs whose groups find their own. A group of more workers has at least as much memory for micro-batches.
        """
        below = [each for each in self.measured if each.world_size <= world_size]
        found = (below[-1:] or self.measured)[:1]
        return found[0].caps if found else Caps.of(self.sizes)

    @property
    def residuals(self) -> dict[int, float]:
        """World size -> how much longer the model's step is than the measured one, as a fraction of it."""
        return {
            each.world_size: self.model.seconds_per_step(each.plan(self.sizes)) / each.seconds - 1
            for each in self.measured
        }


def measured_sizes(times: tuple[SizeTimes, ...], sizes: BatchSizes) -> list[MeasuredSize]:
    """What `step_time.fit` takes."""
    return [MeasuredSize(plan=each.plan(sizes), seconds=each.seconds, waited_s=each.waited_s or None) for each in times]
