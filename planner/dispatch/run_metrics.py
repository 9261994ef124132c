"""The metrics of a run: a table of their names and units, and their values from the ledger's records.

`metrics_exporter.py` hands the values to Ray, which exports them to Prometheus with `ray_` in front of each name.
docs/reference/metrics.md has the table. This module is pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from planner.errors import PlanError
from planner.provenance.identity import recorded_plan
from planner.provenance.run_times import RunClock
from planner.store.records import (
    CommitRecord,
    EvalRecord,
    GenerationRecord,
    MeasurementRecord,
    Record,
    StepRecord,
)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric. Each of its series has the label `run`, and one label more if `label` names one."""

    name: str
    """as planner gives it to Ray, without `ray_`"""
    kind: Literal["gauge", "counter"]
    unit: str
    """in words, such as `seconds`. Empty for a number without a unit"""
    help: str
    label: str = ""


def _gauge(name: str, unit: str, text: str, label: str = "") -> Metric:
    return Metric(name=f"planner_{name}", kind="gauge", unit=unit, help=text, label=label)


def _counter(name: str, unit: str, text: str) -> Metric:
    return Metric(name=f"planner_{name}_total", kind="counter", unit=unit, help=text)


METRICS = (
    _gauge("step", "steps", "Optimizer steps done. It falls when steps were lost and are done again"),
    _gauge("total_steps", "steps", "Optimizer steps of the whole job"),
    _gauge("committed_step", "steps", "Optimizer steps in the newest durable commit"),
    _gauge("commit_timestamp_seconds", "seconds since 1970", "When the newest commit was durable"),
    _gauge("commit_seconds", "seconds", "How long the newest commit paused training"),
    _gauge("commit_write_seconds", "seconds", "From the begin of the newest commit until it was durable"),
    _gauge("workers", "workers", "World size of the group that trains. 0 while no group trains"),
    _gauge("generation", "", "Number of the newest generation"),
    _gauge("global_batch_samples", "samples", "Samples per optimizer step, over all workers"),
    _gauge("rounds", "rounds", "Forward and backward rounds per optimizer step"),
    _gauge("largest_share_samples", "samples", "The largest share of a global batch on one worker"),
    _gauge("smallest_share_samples", "samples", "The smallest share. 0 if a worker is idle"),
    _gauge("plan_efficiency_ratio", "0 to 1", "Fraction of the workers' time that computes samples, by the plan"),
    _gauge("loss", "", "Mean loss over the last global batch"),
    _gauge("grad_norm", "", "Norm of the last gradient, before clipping"),
    _gauge("learning_rate", "", "Learning rate of the last step"),
    _gauge("objective_metric", "", "What the objective measures besides the loss, at the last step", "metric"),
    _gauge("eval_loss", "", "Mean loss over the held-out samples"),
    _gauge("eval_metric", "", "What the objective measures besides the held-out loss", "metric"),
    _gauge("samples_per_second", "samples per second", "Moving average over steps. 0 while no group trains"),
    _gauge("tokens_per_second", "tokens per second", "Input tokens, without padding. 0 while no group trains"),
    _gauge("mfu_ratio", "0 to 1", "Model FLOPs utilization, if the devices' peak is known. 0 while no group trains"),
    _gauge("peak_memory_bytes", "bytes", "The most memory of any worker: allocated on CUDA, resident on the CPU"),
    _gauge("step_seconds", "seconds", "Duration of the last step"),
    _gauge("step_data_seconds", "seconds", "Part of a step: waiting for samples, as a mean over workers"),
    _gauge("step_forward_seconds", "seconds", "Part of a step: forward passes"),
    _gauge("step_backward_seconds", "seconds", "Part of a step: backward passes"),
    _gauge("step_update_seconds", "seconds", "Part of a step: clipping and the optimizer"),
    _gauge("step_communication_seconds", "seconds", "Collectives of a step. They overlap with its other parts"),
    _gauge("time_seconds", "seconds", "Time of the whole run by its use, at the newest record", "use"),
    _counter("steps_done", "steps", "Steps done, those done again included"),
    _counter("steps_redone", "steps", "Steps done again, because they were lost before a commit"),
    _counter("samples", "samples", "Samples of the steps done"),
    _counter("loss_tokens", "tokens", "Loss-bearing tokens of the steps done"),
    _counter("resizes", "resizes", "Changes of the number of workers"),
    _counter("commits", "commits", "Commits that became durable"),
)
"""all metrics, in the order of the documentation"""

_SPEEDS = ("planner_samples_per_second", "planner_tokens_per_second", "planner_mfu_ratio")
# As in the terminal: a single step varies too much, and the mean of the whole run hides a resize.
_SMOOTHING = 0.8

SeriesKey = tuple[str, str]
"""a metric's name, and the value of its label (empty if it has none)"""


class RunMetrics:
    """Computes the values of a run's metrics. Give it all records of all generations, oldest first.

    Gauges describe the whole run. Counters begin at 0 with each launch, so that their sum over launches is the run's.
    """

    def __init__(self, launch_id: str) -> None:
        self._launch_id = launch_id
        self._clock = RunClock()
        self._header: GenerationRecord | None = None
        self._next_step = 0
        self._values: dict[SeriesKey, float] = {(each.name, ""): 0.0 for each in METRICS if each.kind == "counter"}

    def values(self, *, is_training: bool) -> Mapping[SeriesKey, float]:
        """The value of each series. A series without a value yet is left out.

        Args:
            is_training: whether a group trains. If not, the run has no workers and no speed.
        """
        values = {**self._values, **dict(self._times())}
        values["planner_workers", ""] = 0.0
        if is_training and self._header is not None and self._is_ours:
            values["planner_workers", ""] = float(self._header.world_size)
        else:
            values |= {(name, ""): 0.0 for name in _SPEEDS if (name, "") in values}
        return values

    def add(self, record: Record) -> None:
        """Add one more record."""
        self._clock.add(record)
        if isinstance(record, GenerationRecord):
            self._begin(record)
        elif isinstance(record, StepRecord):
            self._step(record)
        elif isinstance(record, CommitRecord):
            self._set(commit_timestamp_seconds=self._clock.now_s, commit_seconds=record.seconds)
            self._set(committed_step=record.step)
            if record.write_s:  # 0: not known
                self._set(commit_write_seconds=record.write_s)
            self._count(commits=1)
        elif isinstance(record, EvalRecord):
            self._set(eval_loss=record.loss)
            self._set_each("eval_metric", record.metrics)
        elif isinstance(record, MeasurementRecord):
            self._measure(record)

    @property
    def _is_ours(self) -> bool:
        """Whether this launch wrote the newest header."""
        return self._header is not None and self._header.launch_id == self._launch_id

    def _times(self) -> Iterator[tuple[SeriesKey, float]]:
        for name, seconds in asdict(self._clock.times).items():
            yield ("planner_time_seconds", name.removesuffix("_s")), seconds

    def _begin(self, header: GenerationRecord) -> None:
        before, was_ours = self._header, self._is_ours
        self._header = header
        if before is not None and was_ours and before.world_size != header.world_size:
            self._count(resizes=1)
        self._set(
            step=header.step,
            total_steps=header.total_steps,
            generation=header.generation,
            global_batch_samples=header.identity.global_batch,
            samples_per_second=0,
        )
        if not header.parent_is_held:  # a held step is not durable
            self._set(committed_step=header.step)
        try:
            plan = recorded_plan(header)
        except PlanError:  # an arithmetic that this version does not know
            return
        shares = [samples for _workers, samples in plan.shares]
        self._set(
            rounds=plan.accumulation_steps,
            largest_share_samples=max(shares),
            smallest_share_samples=0 if plan.workers_idle else min(shares),
            plan_efficiency_ratio=plan.efficiency,
        )

    def _step(self, record: StepRecord) -> None:
        rate = record.samples / max(record.seconds, 1e-9)
        before = self._values.get(("planner_samples_per_second", "")) or rate
        self._set(
            step=record.step + 1,
            loss=record.loss,
            grad_norm=record.grad_norm,
            learning_rate=record.lr,
            samples_per_second=_SMOOTHING * before + (1 - _SMOOTHING) * rate,
            step_seconds=record.seconds,
        )
        self._set_each("objective_metric", record.metrics)
        is_redone = record.step < self._next_step
        self._next_step = max(self._next_step, record.step + 1)
        self._count(steps_done=1, steps_redone=is_redone, samples=record.samples, loss_tokens=record.tokens)

    def _measure(self, record: MeasurementRecord) -> None:
        """Speed and memory of some steps. A value of 0 means that it is not known."""
        if record.tokens_per_s:
            self._set(tokens_per_second=record.tokens_per_s)
        if record.mfu:
            self._set(mfu_ratio=record.mfu)
        if record.peak_memory_bytes:
            self._set(peak_memory_bytes=record.peak_memory_bytes)
        num_steps = max(record.num_steps, 1)
        self._set(
            step_data_seconds=record.data_s / num_steps,
            step_forward_seconds=record.forward_s / num_steps,
            step_backward_seconds=record.backward_s / num_steps,
            step_update_seconds=record.update_s / num_steps,
            step_communication_seconds=record.communication_s / num_steps,
        )

    def _set(self, **values: float) -> None:
        self._values |= {(f"planner_{name}", ""): float(value) for name, value in values.items()}

    def _set_each(self, name: str, values: Mapping[str, float]) -> None:
        self._values |= {(f"planner_{name}", label): float(value) for label, value in values.items()}

    def _count(self, **increments: int) -> None:
        """Raise counters, if a driver of this launch counts."""
        if self._is_ours:
            for name, increment in increments.items():
                self._values[f"planner_{name}_total", ""] += increment
