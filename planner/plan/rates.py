"""What one run measured of its steps, in a form that predicts those of its job at other sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from planner.plan.factory import BatchSizes, make_plan
from planner.plan.plan import Plan
from planner.plan.speed import Speeds
from planner.plan.step_time import MeasuredSize, StepModel, Term

Setting = str | int | float | bool | None

Origin = Literal["measured", "between", "beyond", "model"]
"""where a step's seconds come from: the run had that size, it lies between two measured costs, it lies beyond them, or
the rates have no measured size of this batch"""


@dataclass(frozen=True, kw_only=True)
class SizeTimes:
    """The typical steps of a run at one world size."""

    world_size: int
    steps: int
    seconds: float
    """the median of a step, without commits"""
    waited_s: float = 0.0
    """of it in collectives. 0 if not known"""


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
    """of the measured steps"""
    model: StepModel
    measured: tuple[SizeTimes, ...] = ()
    """by rising world size"""
    sample_tokens: Term | None = None
    """tokens of a mean sample, without padding. None if not known"""
    epoch_samples: int = 0
    """samples of an epoch of the run's data. 0 if not known"""

    def speeds(self, sizes: BatchSizes) -> Speeds:
        """Seconds per step of a job with these batch sizes. Measured times count only for the same ones."""
        if sizes != self.sizes:
            return Speeds(model=self.model)
        return Speeds(measured={each.world_size: each.seconds for each in self.measured}, model=self.model)

    def origin(self, plan: Plan, sizes: BatchSizes) -> Origin:
        """Where `speeds(sizes)` has the seconds of this plan from."""
        if sizes != self.sizes or not self.measured:
            return "model"
        if any(each.world_size == plan.world_size for each in self.measured):
            return "measured"
        costs = [plan.at(each.world_size).work for each in self.measured]
        return "between" if min(costs) <= plan.work <= max(costs) else "beyond"

    @property
    def residuals(self) -> dict[int, float]:
        """World size -> how much longer the model's step is than the measured one, as a fraction of it."""
        return {
            each.world_size: self.model.seconds_per_step(make_plan(self.sizes, each.world_size)) / each.seconds - 1
            for each in self.measured
        }


def measured_sizes(times: tuple[SizeTimes, ...], sizes: BatchSizes) -> list[MeasuredSize]:
    """What `step_time.fit` takes."""
    return [
        MeasuredSize(plan=make_plan(sizes, each.world_size), seconds=each.seconds, waited_s=each.waited_s or None)
        for each in times
    ]
