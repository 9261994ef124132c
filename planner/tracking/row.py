"""A row: all values of one step, with the names that trackers show."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from planner.plan import Plan
from planner.plan.by_length import ByLength
from planner.provenance.run_times import RunTimes
from planner.store.records import CommitRecord, EvalRecord, GenerationRecord, MeasurementRecord, StepRecord


@dataclass(frozen=True, kw_only=True)
class Row:
    """All values of one step. A tracker gets each step once, and steps rise."""

    step: int
    """optimizer steps done, as in the names of commits. The first step's row has 1"""
    time_s: float
    """when the step was done, in seconds since the epoch"""
    values: Mapping[str, float]
    """name -> value. docs/guides/tracking.md has the names and units. Losses may be infinite or not a number"""


def step_values(record: StepRecord) -> dict[str, float]:
    """The values of an optimizer step: loss, gradient norm, learning rate and metrics."""
    return {
        **{f"train/{name}": value for name, value in record.metrics.items()},
        "train/loss": record.loss,
        "train/grad_norm": record.grad_norm,
        "train/lr": record.lr,
        "batch/samples": record.samples,
        "batch/tokens": record.tokens,
        "speed/step_s": record.seconds,
    }


def speed_values(record: StepRecord, global_batch: int) -> dict[str, float]:
    """The speed of an optimizer step in samples per second. Empty if its duration is not known."""
    return {"speed/samples_per_s": global_batch / record.seconds} if record.seconds > 0 else {}


def eval_values(record: EvalRecord) -> dict[str, float]:
    """The values of an evaluation: loss and metrics."""
    return {**{f"eval/{name}": value for name, value in record.metrics.items()}, "eval/loss": record.loss}


def commit_values(record: CommitRecord) -> dict[str, float]:
    """What a commit took. A time that is not known is left out."""
    known = {"speed/commit_write_s": record.write_s} if record.write_s else {}
    return {"speed/commit_s": record.seconds, **known}


def plan_values(header: GenerationRecord, plan: Plan | None) -> dict[str, float]:
    """How the steps of a generation are split over its workers. `plan` is None if its arithmetic is not known."""
    group: dict[str, float] = {"batch/generation": header.generation, "batch/world_size": header.world_size}
    if plan is None or isinstance(plan, ByLength):  # by length, each step has a split of its own: `measured_values`
        return group
    shares = plan.shares
    return {
        **group,
        "batch/rounds": plan.accumulation_steps,
        "batch/largest_share": shares[0][1],
        "batch/smallest_share": shares[-1][1],
        "batch/efficiency": plan.efficiency,
    }


def measured_values(record: MeasurementRecord) -> dict[str, float]:
    """Speed, memory and the division of time of the steps that a measurement covers. Means over these steps."""
    steps = max(record.num_steps, 1)
    values = {
        "speed/data_s": record.data_s / steps,
        "speed/forward_s": record.forward_s / steps,
        "speed/backward_s": record.backward_s / steps,
        "speed/update_s": record.update_s / steps,
        "speed/communication_s": record.communication_s / steps,
    }
    known = {
        "speed/tokens_per_s": record.tokens_per_s,
        "speed/mfu": record.mfu,
        "speed/peak_memory_bytes": record.peak_memory_bytes,
        "batch/rounds": record.num_rounds / steps,
        "batch/efficiency": record.efficiency,
    }
    return {**values, **{name: value for name, value in known.items() if value > 0}}


def time_values(times: RunTimes) -> dict[str, float]:
    """Where the run's time went so far, in seconds since its start."""
    return {key: getattr(times, name) for name, key in _TIMES.items()}


_TIMES = {each.name: f"time/{each.name}" for each in fields(RunTimes)}
