"""Which rows are final: a fold over the ledger that yields a step only when it can no longer be undone.

A step is final when a commit that includes it is durable: when its record is in the ledger, which may stand behind the
records of later steps. It is also final when a later generation resumed from a commit at it or after it. Memory may be
lost, so resuming from a held step makes nothing final. Steps that a generation undid are dropped. So each step appears
once and steps rise, whatever happened to the workers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

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
from planner.tracking.row import (
    Row,
    eval_values,
    measured_values,
    plan_values,
    speed_values,
    step_values,
    time_values,
)


@dataclass
class _Pending:
    """A row that may still be undone, or that waits for its evaluation."""

    time_s: float
    values: dict[str, float] = field(default_factory=dict)
    has_evaluation: bool = False

    def row(self, step: int) -> Row:
        return Row(step=step, time_s=self.time_s, values=self.values)


class FinalSteps:
    """Takes the records of all generations, oldest first, and yields the rows that have become final."""

    def __init__(self) -> None:
        self._clock = RunClock()
        self._generation = 0
        self._global_batch = 0
        self._plan: dict[str, float] = {}
        self._measured: dict[str, float] = {}
        self._pending: dict[int, _Pending] = {}
        self._newest = 0
        self._committed = -1
        self._emitted = -1
        self.header: GenerationRecord | None = None
        """of the newest generation. None before the first one"""

    @property
    def live(self) -> dict[str, float]:
        """Step, loss and world size of the newest step, which may still be undone. Empty if no step is pending."""
        if (pending := self._pending.get(self._newest)) is None or "train/loss" not in pending.values:
            return {}
        return {
            "live/step": self._newest,
            "live/loss": pending.values["train/loss"],
            "live/world_size": pending.values.get("batch/world_size", 0),
        }

    def add(self, generation: int, record: Record) -> Iterator[Row]:
        """Take one more record, and yield the rows that it makes final, by rising step."""
        if isinstance(record, GenerationRecord):
            yield from self._begin(record)
            return
        if self.header is None or generation != self._generation:
            return  # an older generation that did not know that it was replaced, or a segment without a header
        self._clock.add(record)
        if isinstance(record, StepRecord):
            yield from self._last_final()
            self._add_step(record)
        elif isinstance(record, EvalRecord):
            self._add_evaluation(record)
            if record.step == self._committed:
                yield from self._last_final()
        elif isinstance(record, CommitRecord):
            if (pending := self._pending.get(record.step)) is not None:
                pending.values["speed/commit_s"] = record.seconds
                if record.write_s:
                    pending.values["speed/commit_write_s"] = record.write_s
            yield from self._commit(record.step)
        elif isinstance(record, MeasurementRecord):
            self._add_measurement(record)

    def flush(self) -> Iterator[Row]:
        """Yield the final row that waits for an evaluation. Call it when no generation writes any more."""
        yield from self._last_final()

    def _begin(self, header: GenerationRecord) -> Iterator[Row]:
        """A generation began at step `header.step`, so later steps of the one before are undone."""
        if header.generation <= self._generation:
            return
        self._generation, self.header = header.generation, header
        self._clock.add(header)
        self._global_batch = header.identity.global_batch
        self._measured = {}
        try:
            self._plan = plan_values(header, recorded_plan(header))
        except PlanError:  # an arithmetic that this version does not know
            self._plan = {"batch/generation": header.generation, "batch/world_size": header.world_size}
        for step in [step for step in self._pending if step > header.step]:
            del self._pending[step]
        self._newest = min(self._newest, header.step)
        if not header.parent_is_held:
            yield from self._commit(header.step)

    def _add_step(self, record: StepRecord) -> None:
        step = record.step + 1
        # A header chose a later commit than the newest on record: then these are steps that a tracker has.
        if step <= self._emitted:
            return
        values = {
            **self._measured,
            **step_values(record),
            **speed_values(record, self._global_batch),
            **self._plan,
            **time_values(self._clock.times),
        }
        self._pending[step] = _Pending(time_s=self._clock.now_s, values=values)
        self._newest = step

    def _add_evaluation(self, record: EvalRecord) -> None:
        if record.step <= self._emitted:
            return
        pending = self._pending.setdefault(record.step, _Pending(time_s=self._clock.now_s))
        pending.values.update(eval_values(record))
        pending.has_evaluation = True

    def _add_measurement(self, record: MeasurementRecord) -> None:
        self._measured = measured_values(record)
        for step in range(record.step - record.num_steps + 1, record.step + 1):
            if (pending := self._pending.get(step)) is not None and "train/loss" in pending.values:
                pending.values.update(self._measured)

    def _commit(self, step: int) -> Iterator[Row]:
        """Steps up to `step` are final. The last one waits for its evaluation, if that can still come.

        At a step's end, the evaluation comes after the begin of the commit and before later steps.
        """
        self._committed = step
        yield from self._emit(step - 1)
        if (last := self._pending.get(step)) is not None and (last.has_evaluation or self._newest > step):
            yield from self._emit(step)

    def _last_final(self) -> Iterator[Row]:
        if self._committed in self._pending:  # called at each step, of which many may be pending
            yield from self._emit(self._committed)

    def _emit(self, up_to: int) -> Iterator[Row]:
        for step in sorted(step for step in self._pending if step <= up_to):
            pending = self._pending.pop(step)
            self._emitted = step
            yield pending.row(step)
