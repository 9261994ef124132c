"""How a run stands: the one fold over its ledger. Nobody else decides what a record does to a run.

`StoryFold` takes the records, `RunStory` is the state after them. Its memory is bounded, except for one number per
commit, which the clock needs to undo them.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from planner.errors import PlanError
from planner.events.capacity import Capacity
from planner.events.saves import CommitInterval
from planner.plan import Plan
from planner.provenance.identity import recorded_plan
from planner.provenance.run_times import RunClock, RunTimes
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
class News:
    """A record that people are told of: a new generation, an evaluation, a commit or an event."""

    record: GenerationRecord | EvalRecord | CommitRecord | EventRecord
    time_s: float | None
    """when it was written, in seconds since the epoch: on record, or computed from the durations. None if not known"""
    again: int = 0
    """of a new generation: the steps on record that it does again"""

    @property
    def is_listed(self) -> bool:
        """Whether it stands among a run's events. Commits and nodes do not, because there may be thousands."""
        if isinstance(self.record, EventRecord):
            return self.record.event != Capacity.name
        return not isinstance(self.record, CommitRecord)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What one launch has done, work that was undone later included."""

    steps_done: int = 0
    steps_redone: int = 0
    """steps that were on record before, of any launch"""
    samples: int = 0
    tokens: int = 0
    """loss-bearing tokens"""
    resizes: int = 0
    """changes of the number of workers"""
    commits: int = 0


_COUNTS = tuple(each.name for each in fields(Counts))


@dataclass(frozen=True, kw_only=True)
class RunStory:
    """How a run stands after the records so far."""

    header: GenerationRecord | None = None
    """of the newest generation, or None before the first one"""
    plan: Plan | None = None
    """of that generation. None if this version of planner does not know its arithmetic: `recorded_plan` says why"""
    now_s: float = 0.0
    """when the last record was written, in seconds since the epoch. 0 if not known"""
    times: RunTimes = field(default_factory=RunTimes)
    step: int = 0
    """steps done"""
    total_steps: int = 0
    """0 if not known yet"""
    committed_step: int = 0
    """the newest durable step"""
    samples_per_s: float = 0.0
    """a moving average over the steps of this generation. 0 before the first"""
    last_step: StepRecord | None = None
    last_eval: EvalRecord | None = None
    last_commit: CommitRecord | None = None
    last_commit_s: float = 0.0
    """when it was recorded, in seconds since the epoch. 0 if not known"""
    measured: tuple[MeasurementRecord, ...] = ()
    """the last measurements of this generation"""
    interval: CommitInterval | None = None
    """how often the run commits, as it chose last"""
    counts: Counts = field(default_factory=Counts)
    """of the newest launch"""

    @property
    def generation(self) -> int:
        """The number of the newest generation, or 0."""
        return self.header.generation if self.header else 0

    @property
    def world_size(self) -> int:
        """Workers of the newest generation, or 0."""
        return self.header.world_size if self.header else 0

    @property
    def held_step(self) -> int:
        """The newest step that the ledger knows in memory or durable. Who asks the workers may know a later one."""
        resumed = self.header.step if self.header and self.header.parent_is_held else 0
        return max(self.committed_step, resumed)

    @property
    def loss(self) -> float | None:
        """At the last step."""
        return self.last_step.loss if self.last_step else None

    @property
    def metrics(self) -> Mapping[str, float]:
        """What the objective measures besides the loss, at the last step."""
        return self.last_step.metrics if self.last_step else {}


class StoryFold:
    """Takes a run's records, oldest first. What is public is as in `RunStory`."""

    def __init__(self, *, step: int = 0, total_steps: int = 0) -> None:
        """Begin with a run that stands at a durable `step`, because its earlier records are not read."""
        self.clock = RunClock()
        self.header: GenerationRecord | None = None
        self.plan: Plan | None = None
        self.step = self.committed_step = step
        self._total_steps, self._furthest = total_steps, 0
        self._samples_per_s = 0.0
        self._last_step: StepRecord | None = None
        self._last_eval: EvalRecord | None = None
        self._last_commit: CommitRecord | None = None
        self._last_commit_s = 0.0
        self._measured: deque[MeasurementRecord] = deque(maxlen=_NUM_MEASUREMENTS)
        self._interval: CommitInterval | None = None
        # Of the last record. The clock's time never goes back, because its seconds add up, so it may be later.
        self._written_s: float | None = None
        self._counts = dict.fromkeys(_COUNTS, 0)

    @property
    def story(self) -> RunStory:
        """How the run stands now."""
        return RunStory(
            header=self.header,
            plan=self.plan,
            now_s=self.clock.now_s,
            times=self.clock.times,
            step=self.step,
            total_steps=self._total_steps,
            committed_step=self.committed_step,
            samples_per_s=self._samples_per_s,
            last_step=self._last_step,
            last_eval=self._last_eval,
            last_commit=self._last_commit,
            last_commit_s=self._last_commit_s,
            measured=tuple(self._measured),
            interval=self._interval,
            counts=Counts(**self._counts),
        )

    def add(self, record: Record) -> News | None:
        """Add one more record. Return it as news if people are told of it."""
        self.clock.add(record)
        # First, because a ledger has a million of them, and pydantic makes a negative `isinstance` slow.
        if isinstance(record, StepRecord):
            self._add_step(record)
            return None
        if isinstance(record, GenerationRecord | EventRecord | MeasurementRecord):
            self._written_s = record.time_s
        elif self._written_s is not None:
            self._written_s += record.seconds
        if isinstance(record, MeasurementRecord):
            self._measured.append(record)
            return None
        again = self._begin(record) if isinstance(record, GenerationRecord) else 0
        if isinstance(record, CommitRecord):
            self.committed_step, self._last_commit, self._last_commit_s = record.step, record, self.clock.now_s
            self._counts["commits"] += 1
        elif isinstance(record, EvalRecord):
            self._last_eval = record
        # Other events are not made: one of a forged ledger may have a million facts.
        elif isinstance(record, EventRecord) and record.event == CommitInterval.name:
            told = record.told
            self._interval = told if isinstance(told, CommitInterval) else self._interval
        return News(record=record, time_s=self._written_s, again=again)

    def _add_step(self, record: StepRecord) -> None:
        rate = record.samples / max(record.seconds, 1e-9)
        before = self._samples_per_s
        self._samples_per_s = _SMOOTHING * before + (1 - _SMOOTHING) * rate if before else rate
        self.step, self._last_step = record.step + 1, record
        counts = self._counts
        counts["steps_done"] += 1
        counts["steps_redone"] += record.step < self._furthest
        counts["samples"] += record.samples
        counts["tokens"] += record.tokens
        self._furthest = max(self._furthest, self.step)
        if self._written_s is not None:
            self._written_s += record.seconds

    def _begin(self, header: GenerationRecord) -> int:
        """A generation began. Return the steps on record that it does again."""
        again = max(self.step - header.step, 0)
        if self.header is None or self.header.launch_id != header.launch_id:
            self._counts = dict.fromkeys(_COUNTS, 0)
        else:
            self._counts["resizes"] += self.header.world_size != header.world_size
        self.header, self.plan = header, _known_plan(header)
        self.step, self._total_steps = header.step, header.total_steps
        # A held step is not durable. Its generation commits it at once.
        self.committed_step = min(self.committed_step, header.step) if header.parent_is_held else header.step
        self._samples_per_s = 0.0
        self._measured.clear()
        return again


def story_of(records: Iterable[Record]) -> RunStory:
    """How a run stands after these records."""
    fold = StoryFold()
    for record in records:
        fold.add(record)
    return fold.story


def _known_plan(header: GenerationRecord) -> Plan | None:
    try:
        return recorded_plan(header)
    except PlanError:
        return None
