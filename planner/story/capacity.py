"""What a run's ledger says of the nodes it had, and of what changes cost it: one fold, for `planner simulate --replay`.

It also takes the ends of segments alone (`planner.store.survey`). Then the steps between are not counted.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.events.capacity import Capacity
from planner.events.event import Event
from planner.events.failures import NodesLost
from planner.events.sizing import PlacesUnused, Resizes, Waited
from planner.events.stopping import Notice
from planner.plan import BatchSizes
from planner.provenance.identity import recorded_sizes
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

_KINDS = frozenset(kind.name for kind in (Capacity, NodesLost, PlacesUnused, Resizes, Waited, Notice))
# The median of so many is certain enough.
_MOST_COMMITS = 1000


@dataclass(frozen=True, kw_only=True)
class Told:
    """An event about nodes, with the time of its record in seconds since the epoch."""

    time_s: float
    event: Event


@dataclass(frozen=True, kw_only=True)
class GroupSpan:
    """One generation that did a step. Times are in seconds since the epoch."""

    launch_id: str
    workers: int
    sizes: BatchSizes
    """of its steps, with its caps"""
    header_s: float
    start_s: float
    """when its first step began"""
    end_s: float
    """when its last step, commit or evaluation was done"""
    first_step: int
    end_step: int
    """half open"""
    first_step_s: float
    """seconds of the first step, which is slower. 0 if it was not read"""
    apart_s: float
    """seconds of commits and evaluations that were read"""
    told: tuple[Told, ...]
    """events in its segment, oldest first. The first ones may be about the time before it"""

    @property
    def num_steps(self) -> int:
        """Its steps."""
        return self.end_step - self.first_step

    @property
    def step_s(self) -> float:
        """Mean seconds of a step but the first, with all that happens between two steps. 0 if not known.

        Copies in memory and control messages are in it, and in no step's own seconds.
        """
        left_s = self.end_s - self.start_s - self.first_step_s - self.apart_s
        return max(left_s, 0.0) / (self.num_steps - 1) if self.num_steps > 1 else 0.0

    @property
    def after_loss(self) -> int:
        """The nodes that were lost with the group before it."""
        return max((each.event.nodes for each in self.told if isinstance(each.event, NodesLost)), default=0)

    @property
    def waited_s(self) -> float:
        """Seconds without room before it."""
        return sum(each.event.waited_s for each in self.told if isinstance(each.event, Waited))


@dataclass(frozen=True, kw_only=True)
class RunCapacity:
    """The groups of a run, and what was seen of the cluster's nodes."""

    groups: tuple[GroupSpan, ...] = ()
    """oldest first"""
    times: RunTimes = field(default_factory=RunTimes)
    """where its time went. Only of use if all records were read"""
    commits: Sequence[float] = ()
    """seconds for which each of the last commits paused training"""
    num_commits: int = 0
    is_timed: bool = True
    """false: steps were not read, and no record after them has a time, so nothing says when a group ended"""
    eval_s: float = 0.0
    """seconds of evaluations that were read, without those before the first step of a group"""


class CapacityFold:
    """Takes a run's records, oldest first."""

    def __init__(self) -> None:
        self._groups: list[GroupSpan] = []
        self._commits: deque[float] = deque(maxlen=_MOST_COMMITS)
        self._num_commits, self._eval_s = 0, 0.0
        self._header: GenerationRecord | None = None
        self._told: list[Told] = []
        self._apart_s = self._end_s = 0.0
        self._has_gap, self._is_timed = False, True

    def add(self, record: Record, clock: RunClock) -> None:
        """Add one more record. `clock` has it already."""
        if isinstance(record, StepRecord):
            self._add_step(record, clock.now_s)
        elif isinstance(record, GenerationRecord):
            self._end_group()
            self._begin(record)
        elif isinstance(record, EventRecord):
            if record.event in _KINDS and (event := record.told) is not None:
                self._told.append(Told(time_s=record.time_s, event=event))
        elif isinstance(record, MeasurementRecord):
            self._correct_start(clock.now_s)
        elif isinstance(record, CommitRecord | EvalRecord):
            self._end_s = clock.now_s
            self._add_pause(record)

    def _begin(self, header: GenerationRecord) -> None:
        self._header, self._told = header, []
        self._start_s = self._end_s = header.time_s
        self._first_s = self._apart_s = 0.0
        self._end_step = header.step
        self._is_start_known = self._has_gap = False

    def _add_step(self, record: StepRecord, now_s: float) -> None:
        header = self._header
        if header is None:
            return
        if self._end_step == header.step:
            if record.step == header.step:
                self._start_s, self._first_s = now_s - record.seconds, record.seconds
            else:
                # Without its first steps, nothing says when a group began but its header.
                self._is_start_known = True
        self._has_gap |= record.step != self._end_step
        self._end_s, self._end_step = now_s, record.step + 1

    def _add_pause(self, record: CommitRecord | EvalRecord) -> None:
        if isinstance(record, CommitRecord):
            self._commits.append(record.seconds)
            self._num_commits += 1
        # An evaluation before the first step is part of the start.
        if self._header is not None and self._end_step > self._header.step:
            self._apart_s += record.seconds
            self._eval_s += record.seconds if isinstance(record, EvalRecord) else 0.0

    def _correct_start(self, now_s: float) -> None:
        """At a measurement, whose time is on record. Before the first one, unknown time was before the first step."""
        if self._header is None or self._end_step == self._header.step:
            return
        if not self._is_start_known:
            self._start_s += max(now_s - self._end_s, 0.0)
            self._is_start_known = True
        self._end_s, self._has_gap = now_s, False

    def _end_group(self) -> None:
        header = self._header
        if header is None or self._end_step == header.step:
            return
        self._is_timed &= not self._has_gap
        self._groups.append(
            GroupSpan(
                launch_id=header.launch_id,
                workers=header.world_size,
                sizes=recorded_sizes(header),
                header_s=header.time_s,
                start_s=self._start_s,
                end_s=self._end_s,
                first_step=header.step,
                end_step=self._end_step,
                first_step_s=self._first_s,
                apart_s=self._apart_s,
                told=tuple(self._told),
            )
        )

    def capacity(self, clock: RunClock) -> RunCapacity:
        """What was read. No record may follow."""
        self._end_group()
        self._header = None
        return RunCapacity(
            groups=tuple(self._groups),
            times=clock.times,
            commits=tuple(self._commits),
            num_commits=self._num_commits,
            is_timed=self._is_timed,
            eval_s=self._eval_s,
        )
