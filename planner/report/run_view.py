"""The live view of a run: a value that is updated with each ledger record, and its lines of text."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from planner.base.text import counted
from planner.job.objective_registry import shown_metrics
from planner.provenance.identity import recorded_plan
from planner.report.plan_table import split_text
from planner.report.speed import Speed, commit_text
from planner.store.records import (
    CommitRecord,
    EvalRecord,
    EventRecord,
    GenerationRecord,
    MeasurementRecord,
    Record,
    StepRecord,
)

# Throughput is a moving average: a single step varies too much, and the mean of the whole run hides a resize.
_SMOOTHING = 0.8
# Each is of a second or of one step, whichever is longer. The last one of a generation may be of less.
_NUM_MEASUREMENTS = 5


@dataclass(frozen=True, kw_only=True)
class RunView:
    """The state of a run, from its ledger."""

    generation: int = 0
    world_size: int = 0
    split: str = ""
    rounds: int = 0
    step: int = 0
    """steps done"""
    total_steps: int = 0
    global_batch: int = 0
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """what the objective measures besides the loss, at the last step"""
    held_out: float | None = None
    samples_per_s: float = 0.0
    measured: tuple[MeasurementRecord, ...] = ()
    """the last measurements of this generation"""
    committed_step: int = 0
    """the newest durable step"""
    held_step: int = 0
    """the newest step that is in memory or durable. The ledger does not have it: who knows it sets it"""
    event: str = "waiting for workers"

    @property
    def speed(self) -> Speed | None:
        """Over the last measurements of this generation. None before the first."""
        return Speed.of(self.measured) if self.measured else None


def fold(view: RunView, records: Iterable[Record]) -> tuple[RunView, list[str]]:
    """Return the view after these records, and the events among them as lines of text.

    A commit changes `event`, but gives no line, because there may be thousands.
    """
    lines: list[str] = []
    for record in records:
        view, event = _after(view, record)
        if event:
            view = replace(view, event=event)
        if event and not isinstance(record, CommitRecord):
            lines.append(event)
    return view, lines


def metric_texts(metrics: Mapping[str, float]) -> list[str]:
    """Return the metrics that are shown, such as `margin 0.42` and `accuracy 0.91`."""
    return [f"{label} {metrics[name]:.2f}" for name, label in shown_metrics().items() if name in metrics]


def step_line(view: RunView) -> str:
    """The view in one line."""
    loss = "" if view.loss is None else "  ".join([f"loss {view.loss:.4f}", *metric_texts(view.metrics), ""])
    speed = "".join(f"{text}  " for text in speed_texts(view))
    return (
        f"step {view.step}/{view.total_steps}  {loss}{counted(view.world_size, 'worker')} ({view.split})  "
        f"{speed}{durable_text(view)}"
    )


def durable_text(view: RunView) -> str:
    """`durable 120`, or `durable 120, held 130` if a later step is in memory."""
    is_ahead = view.committed_step < view.held_step <= view.step
    return f"durable {view.committed_step}{f', held {view.held_step}' if is_ahead else ''}"


def speed_texts(view: RunView) -> list[str]:
    """Return what is known of the speed, such as `12.3 samples/s`, `4,096 tokens/s`, `MFU 41%` and `38.2 GiB`."""
    samples = [f"{view.samples_per_s:.1f} samples/s"] if view.samples_per_s else []
    return [*samples, *(view.speed.texts if view.speed else ())]


def _after(view: RunView, record: Record) -> tuple[RunView, str]:
    if isinstance(record, StepRecord):
        return _after_step(view, record), ""
    if isinstance(record, GenerationRecord):
        return _after_generation(view, record)
    if isinstance(record, EvalRecord):
        losses = ", ".join([f"held-out loss {record.loss:.4f}", *metric_texts(record.metrics)])
        return replace(view, held_out=record.loss), f"step {record.step}: {losses}"
    if isinstance(record, MeasurementRecord):
        return replace(view, measured=(*view.measured, record)[-_NUM_MEASUREMENTS:]), ""
    if isinstance(record, CommitRecord):
        event = f"step {record.step}: the commit {commit_text(record.seconds, record.write_s)}"
        return replace(view, committed_step=record.step), event
    return (view, record.message) if isinstance(record, EventRecord) else (view, "")


def _after_step(view: RunView, record: StepRecord) -> RunView:
    rate = record.samples / max(record.seconds, 1e-9)
    smooth = rate if not view.samples_per_s else _SMOOTHING * view.samples_per_s + (1 - _SMOOTHING) * rate
    return replace(view, step=record.step + 1, loss=record.loss, metrics=record.metrics, samples_per_s=smooth)


def _after_generation(view: RunView, record: GenerationRecord) -> tuple[RunView, str]:
    plan = recorded_plan(record)
    again = max(view.step - record.step, 0)
    view = replace(
        view,
        generation=record.generation,
        world_size=record.world_size,
        split=split_text(plan.shares),
        rounds=plan.accumulation_steps,
        step=record.step,
        total_steps=record.total_steps,
        global_batch=record.identity.global_batch,
        samples_per_s=0.0,
        measured=(),
        # A held step is not durable. Its generation commits it at once.
        committed_step=min(view.committed_step, record.step) if record.parent_is_held else record.step,
        held_step=record.step if record.parent_is_held else min(view.held_step, record.step),
    )
    resumed = f"resumed from {'memory at' if record.parent_is_held else 'the commit of'} step {record.step}"
    begins = resumed if record.parent else "begins"
    line = (
        f"generation {record.generation} {begins}: {counted(record.world_size, 'worker')}, split {view.split}, "
        f"{counted(view.rounds, 'round')}, global batch {view.global_batch}"
    )
    line += f", {counted(again, 'step')} to do again" if again else ""
    return view, "; ".join((line, *record.changed))
