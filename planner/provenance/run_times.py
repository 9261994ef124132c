"""Where a run's time went: a fold over its ledger, one record after the other."""

from dataclasses import dataclass, fields

from planner.events.sizing import Waited
from planner.store.records import (
    CommitRecord,
    EvalRecord,
    EventRecord,
    GenerationRecord,
    MeasurementRecord,
    Record,
    StepRecord,
)


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """Seconds of a run by their use. `total_s` is the sum of all but `redone_s`."""

    trained_s: float = 0.0
    """steps that count. Steps that were done again are in it once"""
    redone_s: float = 0.0
    """the part of `trained_s` and `lost_s` that computed steps again"""
    lost_s: float = 0.0
    """steps whose work was undone, because their workers died before a commit or their commit was damaged"""
    committing_s: float = 0.0
    evaluating_s: float = 0.0
    paused_s: float = 0.0
    """between two generations: a resize, or a restart after a failure. Also the first start of each launch"""
    waiting_s: float = 0.0
    """there was room for fewer workers than `workers.min`"""
    stopped_s: float = 0.0
    """no driver ran"""

    @property
    def total_s(self) -> float:
        """All seconds of the run."""
        running_s = self.trained_s + self.lost_s + self.committing_s + self.evaluating_s
        return running_s + self.paused_s + self.waiting_s + self.stopped_s


class RunClock:
    """Adds up the times of a run. Give it all records of all generations, oldest first."""

    def __init__(self) -> None:
        self.now_s = 0.0
        """when the last record was written, in seconds since the epoch: on record, or computed from the durations"""
        self.is_time_known = False
        """whether `now_s` is one. Not before the first record with a time of its own"""
        self._spent = dict.fromkeys((each.name for each in fields(RunTimes)), 0.0)
        self._launch_id = ""
        self._next_step = 0
        # (first step, seconds) of what counts as trained: by commit, then each step since the newest commit.
        self._done: list[tuple[int, float]] = []
        self._num_commits = 0
        self._is_starting = True

    @property
    def times(self) -> RunTimes:
        """The times so far."""
        return RunTimes(**self._spent)

    def add(self, record: Record) -> None:
        """Add one more record."""
        # Steps first, because a ledger has a million of them, and pydantic makes a negative `isinstance` slow.
        if isinstance(record, StepRecord):
            self._spend("trained_s", record.seconds)
            if record.step < self._next_step:
                self._spent["redone_s"] += record.seconds
            self._next_step = max(record.step + 1, self._next_step)
            self._done.append((record.step, record.seconds))
        elif isinstance(record, GenerationRecord):
            self._begin(record)
        elif isinstance(record, CommitRecord):
            self._spend("committing_s", record.seconds)
            self._commit(record.step)
        elif isinstance(record, EvalRecord):
            self._spend("evaluating_s", record.seconds)
        else:
            self._look_at_the_time(record)

    def _spend(self, use: str, seconds: float) -> None:
        self._spent[use] += seconds
        if self.is_time_known:
            self.now_s += seconds

    def _commit(self, end: int) -> None:
        """All steps before `end` were committed. They are kept as one, as a damaged commit may undo them."""
        since = self._done[self._num_commits :]
        steps, later = [each for each in since if each[0] < end], [each for each in since if each[0] >= end]
        if steps:
            self._done[self._num_commits :] = [(steps[0][0], sum(seconds for _, seconds in steps)), *later]
            self._num_commits += 1

    def _undo(self, first: int) -> None:
        """All steps from `first` on are lost."""
        undone_s = sum(seconds for step, seconds in self._done if step >= first)
        self._spent["trained_s"] -= undone_s
        self._spent["lost_s"] += undone_s
        self._done = [each for each in self._done if each[0] < first]
        self._num_commits = len(self._done)

    def _begin(self, record: GenerationRecord) -> None:
        """A generation began. The time since the last record was a pause, or no driver ran."""
        self._undo(record.step)
        began_s = self.now_s or record.launched_s or record.time_s
        if self.now_s and record.launch_id != self._launch_id:
            began_s = min(max(record.launched_s, self.now_s), max(record.time_s, self.now_s))
            self._spent["stopped_s"] += began_s - self.now_s
        self._spent["paused_s"] += max(record.time_s - began_s, 0.0)
        self.now_s, self.is_time_known = max(record.time_s, began_s), True
        self._launch_id, self._is_starting = record.launch_id, True

    def _look_at_the_time(self, record: EventRecord | MeasurementRecord) -> None:
        """A record with its own time. Until the first measurement of a generation, time without a record is a pause."""
        if self._is_starting and self.is_time_known:
            self._spent["paused_s"] += max(record.time_s - self.now_s, 0.0)
        self.now_s, self.is_time_known = max(record.time_s, self.now_s), True
        if isinstance(record, MeasurementRecord):
            self._is_starting = False
        else:
            # Other events are not made: one of a forged ledger may have a million facts.
            told = record.told if record.event == Waited.name else None
            waited_s = told.waited_s if isinstance(told, Waited) else record.waited_s  # formats 1 and 2 have a field
            waited_s = min(max(waited_s, 0.0), self._spent["paused_s"])
            self._spent["paused_s"] -= waited_s
            self._spent["waiting_s"] += waited_s
