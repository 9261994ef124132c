"""Collects the records of one generation into a `Phase`."""

from array import array
from collections import deque

from planner.plan import Plan
from planner.plan.by_length import ByLength
from planner.provenance.identity import recorded_plan
from planner.store.records import GenerationRecord, MeasurementRecord, StepRecord
from planner.story.curves import curve
from planner.story.values import Phase, Told

# Points of the global batch in one phase. It is flat, and a picture has room for as many phases.
_MOST_POINTS = 40
_MOST_EVENTS = 50


class PhaseBuilder:
    """Collects one generation."""

    def __init__(self, header: GenerationRecord, plan: Plan | None) -> None:
        """Begin the generation of a header. `plan` is None if its arithmetic is not known."""
        self.header = header
        self.end_s = 0.0
        """when its last record with work was done, in seconds since the epoch"""
        self._plan = plan
        self._times_s, self._samples = array("d"), array("d")
        self._start_s = self._busy_s = 0.0
        self._end_step = header.step
        self._cost = self._round_cost = self._num_rounds = self._num_measured = 0
        self._told: deque[Told] = deque(maxlen=_MOST_EVENTS)

    def add(self, record: StepRecord, now_s: float) -> None:
        """Add a step that was done at `now_s`."""
        if not self._samples:
            self._start_s = now_s - record.seconds
        self._samples.append(record.samples)
        self._times_s.append(now_s)
        self.end_s = now_s
        self._busy_s += record.seconds
        self._end_step = record.step + 1

    def add_measurement(self, record: MeasurementRecord) -> None:
        """Add a measurement. Only those of plans by length have costs."""
        self._cost += record.cost
        self._round_cost += record.round_cost
        self._num_rounds += record.num_rounds
        self._num_measured += record.num_steps

    def add_event(self, event: Told) -> None:
        """Add an event. Only the last ones are kept."""
        self._told.append(event)

    def phase(self) -> Phase | None:
        """The generation, with times in seconds since the epoch. None if it did no step.

        Raises:
            PlanError: this version of planner does not know its layout.
        """
        if not self._samples:
            return None
        plan = self._plan or recorded_plan(self.header)  # which raises, and says why
        is_by_length = isinstance(plan, ByLength)
        return Phase(
            generation=self.header.generation,
            workers=self.header.world_size,
            shares=plan.shares,
            rounds=self._num_rounds / max(self._num_measured, 1) if is_by_length else plan.accumulation_steps,
            efficiency=self._cost / max(self._round_cost, 1) if is_by_length else plan.efficiency,
            start_s=self._start_s,
            end_s=self.end_s,
            first_step=self.header.step,
            end_step=self._end_step,
            kept_step=self._end_step,
            batch=curve(self._times_s, self._samples, most=_MOST_POINTS),
            samples=int(sum(self._samples)),
            busy_s=self._busy_s,
            told=tuple(self._told),
            by_length=is_by_length,
        )
