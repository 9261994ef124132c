"""Reads what `planner watch` shows from a run's folder: again and again, and nothing else."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from planner.errors import PlanError, StoreError
from planner.report.run_table import Event, event_of, resume_command, run_line
from planner.report.watched_run import Driver, Seen
from planner.store.follow import Follower
from planner.store.lease import driver_state, newest_lease
from planner.store.lease_record import FoundLease
from planner.store.records import GenerationRecord, Record, StepRecord
from planner.store.run_folder import RunFolder
from planner.store.run_status import RunStatus, read_status
from planner.store.storage import Storage
from planner.store.survey import is_run, survey
from planner.story.run_story import StoryFold

# Of each earlier generation: about 1,500 steps.
_TAIL_BYTES = 2**19
# A survey reads a dozen files. It is repeated when something has changed, and after this long.
_SURVEY_S = 30.0
# More points than a wide terminal has dots, even when there are only half as many. An even number.
_MOST_POINTS = 4096
_MOST_EVENTS = 50
# A driver that misses one or two renewals may still be alive (`planner.store.lease`).
_SILENT_BEATS = 4


class RunWatcher:
    """Looks at one run. It has no threads."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage, self._clock = Storage(url), clock
        self._follower = Follower(RunFolder(self._storage), tail_bytes=_TAIL_BYTES)
        self._history = WatchedRecords()
        self._seen = Seen(url=url, is_run=False)
        self._lease = LeaseWatch(clock)
        self._status: RunStatus | None = None
        self._status_since_s = self._surveyed_s = float("-inf")
        self._surveyed: object = None
        self._problem = ""

    def look(self) -> Seen:
        """What is in the run's folder now. If the store does not answer, the last look with the reason."""
        try:
            self._seen = self._look()
        except StoreError as error:
            self._seen = replace(self._seen, store_error=str(error).partition("\n")[0])
        return self._seen

    def _look(self) -> Seen:
        if not self._seen.is_run and not is_run(self._storage):
            return replace(self._seen, store_error="")
        self._remember(self._follower.new_records())
        lease = newest_lease(self._storage)
        driver = self._lease.driver(lease)
        status = self._status_of(lease)
        story = self._history.fold.story
        launch = story.header.launch_id if story.header else ""
        seen = replace(
            self._seen,
            is_run=True,
            store_error="",
            driver=driver,
            silent_s=self._lease.unchanged_s,
            status=status,
            status_age_s=self._clock() - self._status_since_s,
            has_begun=bool(lease and lease.holder and lease.holder.launch == launch),
            story=story,
            losses=tuple(self._history.losses),
            events=tuple(self._history.events),
        )
        return self._with_survey(seen)

    def _remember(self, records: Iterable[Record]) -> None:
        try:
            self._history.add(records)
        except PlanError as error:  # of a newer version of planner, or damaged
            self._problem = f"the ledger: {error}"

    def _status_of(self, lease: FoundLease | None) -> RunStatus | None:
        """The live status, if it is of the driver that holds the run."""
        status = read_status(self._storage)
        if status != self._status:
            self._status, self._status_since_s = status, self._clock()
        holder = lease.holder if lease else None
        return status if status and holder and status.launch == holder.launch else None

    def _with_survey(self, seen: Seen) -> Seen:
        """The look with what a survey finds. A survey is made when something has changed."""
        facts = (seen.driver, seen.story.generation, seen.story.committed_step, seen.is_run)
        if facts == self._surveyed and self._clock() - self._surveyed_s < _SURVEY_S:
            return seen
        found = survey(self._storage.url)
        self._surveyed, self._surveyed_s = facts, self._clock()
        line, lease = run_line(found), found.lease
        return replace(
            seen,
            problem=self._problem or line.reason,
            committed_step=line.committed_step,
            committed_time_s=line.committed_time_s,
            driver_text=f"pid {lease.pid} on {lease.host}" if lease else "its lease cannot be read",
            resume=resume_command(found, line),
            story=replace(seen.story, total_steps=seen.story.total_steps or line.total_steps),
        )


class WatchedRecords:
    """What a board shows of the ledger. Give it the records oldest first."""

    def __init__(self) -> None:
        self.fold = StoryFold()
        self.events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        """the last events, oldest first. Commits are none"""
        self.losses: list[tuple[int, float]] = []
        """(steps done, loss), ascending. A step that was done again has its last loss. Long runs have means"""

    def add(self, records: Iterable[Record]) -> None:
        """Add the next records.

        Raises:
            PlanError: no plan serves the sizes in a header.
        """
        for record in records:
            news = self.fold.add(record)
            if isinstance(record, GenerationRecord):
                self.losses = [point for point in self.losses if point[0] <= record.step]
            elif isinstance(record, StepRecord) and not record.skipped:
                self.losses.append((record.step + 1, record.loss))
                self._thin_out()
            if news and news.is_listed:
                self.events.append(event_of(news))

    def _thin_out(self) -> None:
        # A board looks each second, so what it reads must not grow with the run.
        if len(self.losses) == _MOST_POINTS:
            pairs = zip(self.losses[::2], self.losses[1::2], strict=True)
            self.losses = [(later[0], (earlier[1] + later[1]) / 2) for earlier, later in pairs]


class LeaseWatch:
    """Whether a run's driver lives: by its pid on the same machine, else by watching its lease."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: FoundLease | None = None
        self._changed_s = float("-inf")
        self._was_renewed = False

    @property
    def unchanged_s(self) -> float:
        """How long the lease has not changed while it was watched."""
        return max(self._clock() - self._changed_s, 0.0)

    def driver(self, found: FoundLease | None) -> Driver:
        """The state of the driver whose lease was found now."""
        if found != self._last:
            self._was_renewed = self._last is not None
            self._last, self._changed_s = found, self._clock()
        state = driver_state(found)
        if state == "ended":
            return "ended" if found is not None and found.is_released else "dead"
        if state != "unknown":
            return state
        beat_s = found.holder.beat_s if found is not None and found.holder else 5.0
        if self.unchanged_s > _SILENT_BEATS * beat_s:
            return "silent"
        return "alive" if self._was_renewed else "elsewhere"
