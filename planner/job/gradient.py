"""What a job does to a step's gradient: the settings that the trainer takes, and that a dry run describes.

Where a worker keeps its sums between rounds depends on memory, so each worker group chooses.
"""

from dataclasses import dataclass
from typing import Literal

from planner.base.disk import size_text
from planner.job.job import Job
from planner.plan.by_length import ByLength
from planner.plan.plan import Plan

FLOAT_BYTES, INTEGER_BYTES = 4, 8
"""per parameter, of sums in float32 and of `bitwise` sums in int64"""
# Of the memory that is free after the weights are loaded. Activations and the caching allocator need the rest.
_MOST_OF_FREE = 0.25


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


def accumulator_placement(
    plan: Plan, num_parameters: int, free_bytes: int, element_bytes: int
) -> Literal["local", "sharded"]:
    """Where a worker keeps its sums between rounds. The choice affects memory and speed, and the rounding of floats.

    local     whole sums on every worker, one reduce-scatter a step
    sharded   1 / W of the sums, A reduce-scatters a step

    `local` if it fits into a quarter of `free_bytes` and saves time (A > 1, which lengths may decide, and W > 1), else
    `sharded`.
    """
    may_repeat = plan.accumulation_steps > 1 or isinstance(plan, ByLength)
    saves = may_repeat and plan.world_size > 1
    return "local" if saves and element_bytes * num_parameters <= _MOST_OF_FREE * free_bytes else "sharded"


def placement_text(element_bytes: int, num_parameters: int | None) -> str:
    """How the choice is made, for dry runs. None: the number of trained parameters is not known."""
    each = f"{element_bytes} bytes per trained parameter"
    needed = f"{each} are" if num_parameters is None else f"{size_text(element_bytes * num_parameters)} ({each}) are"
    return (
        f"Workers exchange them once per step where {needed} at most a quarter of the free memory, else after every "
        "round."
    )
