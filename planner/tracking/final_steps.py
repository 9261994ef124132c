"""Which rows are final: a fold over the ledger that yields a step only when it can no longer be undone.

A step is final when a commit that includes it is durable: when its record is in the ledger, which may stand behind the
records of later steps. It is also final when a later generation resumed from a commit at it or after it. Memory may be
lost, so resuming from a held step makes nothing final. Steps that a generation undid are dropped. So each step appears
once and steps rise, whatever happened to the workers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from planner.store.records import (
    CommitRecord,
    EvalRecord,
    GenerationRecord,
    MeasurementRecord,
    Record,
    StepRecord,
)
from planner.story.run_story import StoryFold
from planner.tracking.row import (
    Row,
    commit_values,
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
        self._fold = StoryFold()
        self._plan: dict[str, float] = {}
        self._measured: dict[str, float] = {}
        self._pending: dict[int, _Pending] = {}
        self._emitted = -1

    @property
    def header(self) -> GenerationRecord | None:
        """The header of the newest generation. None before the first one."""
        return self._fold.header

    @property
    def live(self) -> dict[str, float]:
        """Step, loss and world size of the newest step, which may still be undone. Empty if no step is pending."""
        if (pending := self._pending.get(self._fold.step)) is None or "train/loss" not in pending.values:
            return {}
        return {
            "live/step": self._fold.step,
            "live/loss": pending.values["train/loss"],
            "live/world_size": pending.values.get("batch/world_size", 0),
        }

    def add(self, generation: int, record: Record) -> Iterator[Row]:
        """Take one more record, and yield the rows that it makes final, by rising step."""
        newest = self.header.generation if self.header else 0
        if isinstance(record, GenerationRecord):
            if record.generation > newest:
                self._fold.add(record)
                yield from self._begin(record)
            return
        if self.header is None or generation != newest:
            return  # an older generation that did not know that it was replaced, or a segment without a header
        self._fold.add(record)
        if isinstance(record, StepRecord):
            yield from self._last_final()
            self._add_step(record, self.header.identity.global_batch)
        elif isinstance(record, EvalRecord):
            self._add_evaluation(record)
            if record.step == self._fold.committed_step:
                yield from self._last_final()
        elif isinstance(record, CommitRecord):
            if (pending := self._pending.get(record.step)) is not None:
                pending.values.update(commit_values(record))
            yield from self._commit(record.step)
        elif isinstance(record, MeasurementRecord):
            self._add_measurement(record)

    def flush(self) -> Iterator[Row]:
        """Yield the final row that waits for an evaluation. Call it when no generation writes any more."""
        yield from self._last_final()

    def _begin(self, header: GenerationRecord) -> Iterator[Row]:
        """A generation began at step `header.step`, so later steps of the one before are undone."""
        self._plan, self._measured = plan_values(header, self._fold.plan), {}
        for step in [step for step in self._pending if step > header.step]:
            del self._pending[step]
        if not header.parent_is_held:
            yield from self._commit(header.step)

    def _add_step(self, record: StepRecord, global_batch: int) -> None:
        step = record.step + 1
        # A header chose a later commit than the newest on record: then these are steps that a tracker has.
        if step <= self._emitted:
            return
        clock = self._fold.clock
        values = {
            **self._measured,
            **step_values(record),
            **speed_values(record, global_batch),
            **self._plan,
            **time_values(clock.times),
        }
        self._pending[step] = _Pending(time_s=clock.now_s, values=values)

    def _add_evaluation(self, record: EvalRecord) -> None:
        if record.step <= self._emitted:
            return
        pending = self._pending.setdefault(record.step, _Pending(time_s=self._fold.clock.now_s))
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
        yield from self._emit(step - 1)
        if (last := self._pending.get(step)) is not None and (last.has_evaluation or self._fold.step > step):
            yield from self._emit(step)

    def _last_final(self) -> Iterator[Row]:
        committed = self._fold.committed_step
        if committed in self._pending:  # called at each step, of which many may be pending
            yield from self._emit(committed)

    def _emit(self, up_to: int) -> Iterator[Row]:
        for step in sorted(step for step in self._pending if step <= up_to):
            pending = self._pending.pop(step)
            self._emitted = step
            yield pending.row(step)
