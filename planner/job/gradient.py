"""What a job does to a step's gradient: the settings that the trainer takes, and that a dry run describes."""

from dataclasses import dataclass
from typing import Literal

from planner.job.job import Job
from planner.plan.accumulator_placement import FLOAT_BYTES, INTEGER_BYTES


@dataclass(frozen=True, kw_only=True)
class GradientRule:
    """How a step's gradient is summed over rounds and workers, and what comes before the optimizer's step.

    `train.lifecycle.make_sums` and `train.step_update.Updater` do what it says, and know nothing else of the job that
    concerns the gradient. Each loss sum is divided by its count over the whole global batch, whatever the job says.
    """

    is_fixed_point: bool
    """whether sums are integers (`FixedPointSums`), or FSDP's floats (`FloatSums`)"""
    element_bytes: int
    """per trained parameter, of the sums"""
    non_finite: Literal["stop", "skip"]
    """what happens to a step whose gradient is not finite"""
    clip_norm: float | None
    """the largest global norm that is not scaled down, or None"""


def gradient_rule(job: Job) -> GradientRule:
    """What the trainer does to the gradients of a job."""
    is_fixed_point = job.batch.equality == "bitwise"
    return GradientRule(
        is_fixed_point=is_fixed_point,
        element_bytes=INTEGER_BYTES if is_fixed_point else FLOAT_BYTES,
        non_finite=job.train.non_finite,
        clip_norm=job.train.clip_norm,
    )
