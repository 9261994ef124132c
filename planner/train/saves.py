"""What a generation does with its state after each step: nothing, a copy in memory, or a commit. And at its end.

All workers call each method at the same step, and follow what the control message says: rank 0 decides what is due.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from planner.errors import PlannerError
from planner.events.event import Event
from planner.train.commits import Commits, LandedCommit
from planner.train.control import Tally
from planner.train.hooks import Hooks
from planner.train.memory_copies import MemoryCopies
from planner.train.pace import Pace
from planner.train.resume_point import ResumePoint
from planner.train.step_records import CommitTimes
from planner.train.world import World


class Saves:
    """The commits and the copies of one generation, and when they are due.

    Args:
        world: the workers.
        commits: write to the store, in the background.
        memory: copies to the keepers' memory.
        pace: says when a commit is due.
        hooks: say whether a stop may stay in memory.
        start: where the generation begins.
        total_steps: of the job. The last step is always committed.
    """

    def __init__(
        self,
        *,
        world: World,
        commits: Commits,
        memory: MemoryCopies,
        pace: Pace,
        hooks: Hooks,
        start: ResumePoint,
        total_steps: int,
    ) -> None:
        self._world, self._commits, self._memory, self._pace = world, commits, memory, pace
        self._hooks, self._start, self._total_steps = hooks, start, total_steps
        self._begun_step = self._durable_step = start.durable_step
        self._held_step = start.step
        self._copying_step = self._copied_step = start.step if start.is_held else 0
        self.is_held = False
        """whether the last step is only in the keepers' memory"""

    # -- what the control message carries

    def said(self, step: int) -> dict[str, int]:
        """This worker's part of the tally before step `step`."""
        is_first, copies = self._world.rank == 0, self._memory.copies
        return {
            "commit": int(is_first and self._is_commit_due(step)),
            "written": int(self._commits.has_written),
            "sealed": int(self._commits.has_sealed),
            "silent": int(self._commits.is_silent),
            "copy": int(is_first and step > self._start.step and self._memory.is_due()),
            "publishing": int(copies.is_publishing),
            "must_commit": int(not (copies.can_publish and self._hooks.may_hold())),
        }

    def _is_commit_due(self, step: int) -> bool:
        """A generation that resumed from memory commits after its first step."""
        is_owed = self._begun_step < self._start.step < step
        return is_owed or self._pace.due(step, is_writing=self._commits.is_in_flight)

    @property
    def failure(self) -> PlannerError | None:
        """Why this worker cannot commit. None if all is well."""
        return self._commits.failure

    # -- on all workers at the same step

    def advance(self, totals: Tally) -> None:
        """Go on with the commit in flight.

        Raises:
            PlannerError: on every worker, if it cannot be written.
        """
        self._landed(self._commits.advance(totals.written, is_sealed=totals.sealed > 0))
        if totals.silent > 0:
            self._landed(self._commits.finish())

    def save(self, step: int, cursor: int, totals: Tally, *, is_last: bool) -> None:
        """Commit this step or copy it into memory, if that is due. The last step is durable or in memory afterwards.

        Raises:
            PlannerError: on every worker, if it cannot be written.
        """
        if is_last and self._stays_in_memory(step, cursor, totals):
            return
        if step > self._begun_step and (is_last or totals.commit > 0):
            self._landed(self._commits.begin(step, cursor, is_last=is_last))
            # The copy that a commit is written from is published, too. The last commit is written without one.
            self._copying_step = self._copying_step if is_last else step
            self._held_step = self._begun_step = step
            self._pace.did_hold(step)
        elif totals.copy > 0 and not is_last and not totals.publishing:  # or it takes the place of the only whole copy
            self._memory.copy(step, cursor)
            self._copying_step = step
        if is_last:
            self._landed(self._commits.finish())

    def _stays_in_memory(self, step: int, cursor: int, totals: Tally) -> bool:
        """Whether the last step is now in the keepers' memory, and no commit is needed before the workers stop."""
        may = totals.stop > 0 and not totals.failed and not totals.must_commit and step < self._total_steps
        if not may or step <= self._durable_step:
            return False
        is_again = step == self._begun_step  # the commit in flight is of this step: the one after it was abandoned
        if is_again and self._commits.is_sealing:  # nobody may resume from memory while rank 0 writes its manifest
            return False
        if totals.publishing and not is_again:
            # From one of the two places. The commit in flight may be written from the other.
            self._commits.give_up()
        if not self._memory.keep(step, cursor):
            return False
        self._commits.give_up()
        self.is_held = True
        return True

    def did_step(self, seconds: float) -> list[Event]:
        """Record a step's time. Returns events for the ledger."""
        paces = (self._pace.did_step(seconds), self._memory.pace.did_step(seconds))
        return [*(event for event in paces if event is not None), *self._memory.copies.advance()]

    def before_update(self) -> None:
        """Call it before the weights change: a GPU may still be copying them."""
        self._memory.copies.guard()

    @contextmanager
    def landing(self) -> Iterator[None]:
        """Around work that fails on all workers or on none: if it fails, the commit in flight still becomes durable."""
        try:
            yield
        except PlannerError:
            self._commits.finish()
            raise

    def times(self, step: int, totals: Tally, *, is_last: bool) -> CommitTimes:
        """How far the commits are when step `step` is reported, by what all workers have just agreed on."""
        if not (totals.publishing or totals.must_commit):  # every worker has a keeper, which has the last copy
            self._copied_step = self._copying_step
        return CommitTimes(
            held_step=step if totals.commit > 0 and not is_last else self._held_step,
            copied_step=self._copied_step,
            durable_step=self._held_step if totals.sealed > 0 else self._durable_step,
            commit_s=self._commits.save_s,
        )

    @property
    def last_s(self) -> float:
        """Seconds of the last commit, or of the copy at a stop that stays in memory. 0 before the first."""
        return self._memory.copy_s if self.is_held else self._commits.save_s

    def close(self) -> None:
        """Give up what is in flight. Any worker may call it alone."""
        # Commits first: their thread reads from the copies.
        self._commits.close()
        self._memory.copies.close()

    def _landed(self, commit: LandedCommit | None) -> None:
        """A commit became durable."""
        if commit is not None:
            self._durable_step = commit.step
            self._memory.forget_older()
            self._pace.did_land(commit.paused_s, commit.write_s)
