"""Sends a run's final rows to one tracker, and tries again until it has all of them.

A tracker belongs to other people: its library may raise anything, hang, or lose what it was given. So every failure
closes the tracker. The next attempt opens it again, asks which step it has, and goes on after that one.
"""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from planner.base.text import last_line
from planner.base.wait_reports import WaitReports
from planner.errors import NewerFormat, PlannerError, TrackerUnavailable, shortened
from planner.job.tracking import Tracking
from planner.store.records import GenerationRecord
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.tracking.feed import Feed
from planner.tracking.row import Row
from planner.tracking.state import SentState, read_state, sender_lock, state_name, write_state
from planner.tracking.tracker import TrackedRun, Tracker, open_tracker

Open = Callable[[Tracking, TrackedRun], Tracker]

_BATCH = 500
_MOST_CHARS = 160
_LIVE_S = 10.0
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 60.0
_FIRST_REMINDER_S = 120.0
_POLL_S, _REMOTE_POLL_S = 2.0, 10.0


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is sent where."""

    url: str
    """the run's folder"""
    section: Tracking
    name: str
    """of the job"""
    config: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The tracker's name in messages."""
        return self.section.kind


class Sender:
    """Sends the rows of one run to one tracker. `send` does one round, `follow` goes on until it is told to end."""

    def __init__(
        self, subject: Subject, say: Callable[[str], None], *, goes_on: str = "", open_: Open = open_tracker
    ) -> None:
        self._subject, self._say, self._goes_on, self._open = subject, say, goes_on, open_
        self._storage = Storage(subject.url)
        self._run = RunFolder(self._storage)
        self._feed = Feed(self._run)
        self._name = state_name(subject.section)
        self._tracker: Tracker | None = None
        self._rest: list[Row] = []
        self._source: Iterator[Row] | None = None
        self._passed = -1
        self._live_at_s = -_LIVE_S
        self._failing_since_s, self._reports = 0.0, WaitReports(_FIRST_REMINDER_S)
        self._resources = contextlib.ExitStack()
        self.state = SentState()
        self.num_sent = 0
        """rows that this process has sent"""
        self.num_passed = 0
        """rows that this process has sent, or that the tracker had"""
        self.problem = ""
        """why the tracker is not up to date, as text. Empty if nothing is wrong"""
        self.is_done = False
        """whether it has ended with everything sent"""
        self.busy_since_s: float | None = None
        """when the call of the tracker's library began that runs now, on the monotonic clock"""

    @property
    def label(self) -> str:
        """The tracker's name in messages."""
        return self._subject.label

    @property
    def url(self) -> str:
        """The run's folder."""
        return self._subject.url

    # -- one round

    def send(self, *, last: bool = False) -> None:
        """Send all rows that are final now. With `last`, no driver runs the run, so the last row waits for nothing.

        Raises:
            Exception: whatever the tracker's library or the store raises. `release`, then call it again.
        """
        if self._source is not None:  # of a round that failed
            self._drain(Feed.new_rows)
        self._drain(Feed.new_rows)
        if last:
            self._drain(Feed.last_rows)
        if self._tracker is not None and (live := self._feed.live) and self._is_time_for_live():
            with self._in_call():
                self._tracker.live(live)

    def _drain(self, more: Callable[[Feed], Iterator[Row]]) -> None:
        """Send what a failed call has left, and then what `more` yields."""
        while rows := self._next_rows(more):
            tracker = self._opened()
            if fresh := [row for row in self._rest if row.step > self.state.step]:
                self._log(tracker, fresh)
            if self._rest:
                self._passed, self.num_passed = rows[-1].step, self.num_passed + len(rows)
            self._rest = []
        self._source = None

    def _next_rows(self, more: Callable[[Feed], Iterator[Row]]) -> list[Row]:
        """Up to a batch of rows. They are kept one by one, so that a store that fails in between loses none."""
        self._source = self._source or more(self._feed)
        if not self._rest:
            for row in islice(self._source, _BATCH):
                self._rest.append(row)
        return self._rest

    def _opened(self) -> Tracker:
        if self._tracker is not None:
            return self._tracker
        header = self._feed.header
        assert header is not None  # there is a row
        self._resources.enter_context(sender_lock(self._storage, self._name))
        self.state = read_state(self._storage, self._name)
        with self._in_call():
            tracker = self._open(self._subject.section, self._tracked(header))
            self._tracker = tracker
            has = tracker.last_step()
        if has < self._passed:  # it has lost what this process sent, so read the ledger again
            self._feed, self._source, self._rest, self._passed = Feed(self._run), None, [], -1
        # The record may be older than what the tracker has, after a crash, or newer than what it has stored.
        self._keep(SentState(tracker_id=tracker.tracker_id, step=has))
        return tracker

    def _tracked(self, header: GenerationRecord) -> TrackedRun:
        return TrackedRun(
            url=self._subject.url,
            folder=self._storage.path("") if self._storage.is_local else "",
            run_id=header.run_id,
            name=self._subject.name,
            tracker_id=self.state.tracker_id,
            last_step=self.state.step,
            config={
                **self._subject.config,
                "global_batch": header.identity.global_batch,
                **{f"identity.{name}": value for name, value in header.identity.model_dump(mode="json").items()},
                "run": self._subject.url,
            },
        )

    def _log(self, tracker: Tracker, rows: Sequence[Row]) -> None:
        with self._in_call():
            tracker.log(rows)
        self.num_sent += len(rows)
        self._keep(replace(self.state, step=rows[-1].step))

    def _keep(self, state: SentState) -> None:
        if state != self.state:
            write_state(self._storage, self._name, self._subject.section.kind, state)
        self.state = state

    def _is_time_for_live(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._live_at_s < _LIVE_S:
            return False
        self._live_at_s = now_s
        return True

    @contextlib.contextmanager
    def _in_call(self) -> Iterator[None]:
        self.busy_since_s = time.monotonic()
        try:
            yield
        finally:
            self.busy_since_s = None

    def close(self) -> None:
        """Close the tracker, which sends what it still holds. Then free the right to send.

        Raises:
            Exception: whatever the tracker's library raises.
        """
        tracker, self._tracker = self._tracker, None
        try:
            if tracker is not None:
                with self._in_call():
                    tracker.close()
        finally:
            self._resources.close()

    def release(self) -> None:
        """Close the tracker after a failure, without an error. Rows that were not sent are kept."""
        with contextlib.suppress(Exception, SystemExit):  # it has failed already, and its second error says no more
            self.close()

    # -- until the end

    def follow(self, ending: threading.Event, stopped: threading.Event, is_over: bool = True) -> None:
        """Send rows until `ending` is set, and then the rest. Never raises. Give up when `stopped` is set.

        Args:
            ending: nothing more is to be waited for.
            stopped: the process ends now.
            is_over: whether no driver runs the run any more at the end.
        """
        poll_s = _POLL_S if self._storage.is_local else _REMOTE_POLL_S
        retry_s = _FIRST_RETRY_S
        while not stopped.is_set():
            last = ending.is_set()
            error = self._attempt(close=last, last=last and is_over)
            if error is None:
                self._report_success()
                self.is_done, retry_s = last, _FIRST_RETRY_S
                if last:
                    return
                ending.wait(poll_s)
            elif isinstance(error, NewerFormat | TrackerUnavailable):  # no later attempt can succeed
                self.problem = _text(error)
                self._say(f"{self.label}: {self.problem}")
                return
            else:
                self._report_failure(error)
                # The end of the run interrupts this, for the last attempts.
                (stopped if last else ending).wait(retry_s)
                retry_s = min(2 * retry_s, _LONGEST_RETRY_S) if last == ending.is_set() else _FIRST_RETRY_S

    def _attempt(self, *, close: bool, last: bool) -> BaseException | None:
        """One round of `follow`: the error if it fails."""
        try:
            self.send(last=last)
            if close:
                self.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001 a library may raise anything, and training goes on
            self.release()
            return error
        return None

    def _report_failure(self, error: BaseException) -> None:
        now_s = time.monotonic()
        if not self.problem:
            self._failing_since_s = now_s
            self._reports.reset()
            self._say(". ".join(filter(None, (f"{self.label}: {_text(error)}", self._goes_on))))
        elif self._reports.due(waited_s := now_s - self._failing_since_s):
            self._say(f"{self.label}: {_text(error)} (for {waited_s:.0f} s)")
        self.problem = _text(error)

    def _report_success(self) -> None:
        if self.problem:
            self._say(f"{self.label}: has caught up, to step {max(self.state.step, 0)}")
        self.problem = ""


def _text(error: BaseException) -> str:
    """An error of a library in one line."""
    if isinstance(error, PlannerError):
        return str(error)
    reason = re.sub(r"://[^/@\s]*@", "://", last_line(str(error)))  # a URL's name and password
    return f"{type(error).__name__}: {shortened(reason, _MOST_CHARS)}"
