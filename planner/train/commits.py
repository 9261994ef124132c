"""Commits in the background: a step is first *held* in memory, then *durable* in the store, while training goes on.

    training thread, all workers                              background thread of each worker
    begin      copy the shards: the step is held        -->   write them, with digests
    advance    a control message says that all have
               written: rank 0 gathers the digests      -->   on rank 0: `.metadata`, then the manifest: it is durable
    advance    another one says so: rank 0 records it

No collective runs in the background, and only the training thread writes the ledger. At most one commit is in flight:
the next one waits for it. An error in the background reaches all workers through the control message.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from torch import Tensor

from planner.errors import DiskFull, PlannerError, StoreError
from planner.job import Job
from planner.store.records import CommitRecord, digest_of
from planner.store.run_folder import RunFolder, commit_name
from planner.train.background import BackgroundWork
from planner.train.checkpoints.shard_plan import ShardPlan
from planner.train.commit_errors import commit_error
from planner.train.commit_files import CommitFiles
from planner.train.commit_in_flight import CommitInFlight
from planner.train.journal import Journal
from planner.train.memory_copies import MemoryCopies
from planner.train.pruning import Pruning
from planner.train.state import TrainState
from planner.train.world import World, synchronize


@dataclass(frozen=True, kw_only=True)
class LandedCommit:
    """A commit that became durable."""

    step: int
    paused_s: float
    """for which training stood still"""
    write_s: float
    """from the begin of the commit until it was durable"""


class Commits:
    """The commits of one generation.

    Args:
        world: the workers. All of them call `begin`, `advance` and `finish` at the same step.
        run: the run's folder.
        job: says what to keep, and whether files are read back.
        state: what is committed.
        journal: writes the records.
        memory: takes the copies from which files are written.
        committed: the last commit before this generation, as text.
        is_copied: whether training goes on from a copy. Without room for it, training waits for the files.
        before_first: called on all workers before the first commit. It may raise a PlannerError on all of them.
    """

    def __init__(
        self,
        *,
        world: World,
        run: RunFolder,
        job: Job,
        state: TrainState,
        journal: Journal,
        memory: MemoryCopies,
        committed: str,
        is_copied: bool,
        before_first: Callable[[], None] = lambda: None,
    ) -> None:
        self._world, self._run, self._state, self._journal = world, run, state, journal
        self._is_bitwise = job.batch.equality == "bitwise"
        self._files = CommitFiles(world=world, run=run, journal=journal, verify=job.checkpoint.verify)
        self._memory, self._is_copied = memory, is_copied
        self._before_first: Callable[[], None] | None = before_first
        self._plan: ShardPlan | None = None
        self._flight: CommitInFlight | None = None
        self._pruning = Pruning(run, keep=job.checkpoint.keep, generation=journal.generation, note=journal.note)
        self._committed, self._state_bytes = committed, 0
        self.save_s = 0.0
        """seconds that the last commit's write took, without waiting for a step's end. 0 before the first"""

    # -- what the control message carries

    @property
    def has_written(self) -> bool:
        """Whether this worker's part of the commit in flight is written and was not gathered yet."""
        return self._flight is not None and self._flight.has_written

    @property
    def has_sealed(self) -> bool:
        """On rank 0: whether the manifest of the commit in flight is written."""
        return self._flight is not None and self._flight.has_sealed

    @property
    def failure(self) -> PlannerError | None:
        """The error of the commit in flight on this worker. None if all is well."""
        return self._flight.failure if self._flight else None

    @property
    def is_in_flight(self) -> bool:
        """Whether a commit is held and not durable yet."""
        return self._flight is not None

    @property
    def is_sealing(self) -> bool:
        """Whether all workers have written the commit in flight. The same on every worker."""
        return self._flight is not None and self._flight.is_gathered

    @property
    def is_silent(self) -> bool:
        """Whether this worker's storage takes nothing of the commit in flight."""
        return self._flight is not None and self._flight.is_silent

    # -- on all workers at the same step

    def begin(self, step: int, cursor: int, *, is_last: bool) -> LandedCommit | None:
        """Hold the state before step `step`, and begin to write it. Returns the commit before, if it lands now.

        Args:
            step: of the commit. All steps before it are in it.
            cursor: samples consumed.
            is_last: nothing is trained after it, so the state itself is written and not a copy.

        Raises:
            PlannerError: on every worker, if the commit before fails.
        """
        before = self.finish()
        if self._before_first is not None:
            self._before_first()
            self._before_first = None
        began_s = time.monotonic()
        live = self._state.local_shards()
        # AdamW makes its state in its first step, so a commit of step 0 has fewer tensors.
        if self._plan is None or self._plan.names != tuple(live):
            tensors = self._state.tensors()
            self._state_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
            self._plan = ShardPlan.made(self._world, tensors)
        plan = self._plan
        # Now, since later steps write their lines while this commit is in flight.
        head = self._journal.stored_head()
        shards, ready = self._held(step, cursor, head, live, is_last=is_last)
        name = commit_name(step, self._journal.generation)
        write = partial(self._files.write, name, plan, shards, ready, head)
        writing = BackgroundWork(write, partial(self._error, step))
        flight = CommitInFlight(
            step=step, cursor=cursor, name=name, head=head, plan=plan, writing=writing, began_s=began_s
        )
        self._flight = flight
        # Each digest needs its whole tensor, gathered from all workers, so only the last commit has digests.
        if self._is_bitwise and step == self._journal.total_steps:
            flight.tensors = self._state.digests(self._world)
        # Without room for a copy, the state itself is written, and nothing may change it meanwhile.
        if not (self._is_copied or is_last):
            with suppress(PlannerError):  # `advance` raises it on every worker
                writing.result()
        flight.paused_s = time.monotonic() - began_s
        return before

    def advance(self, num_written: int, *, is_sealed: bool) -> LandedCommit | None:
        """Go on with the commit in flight, by what all workers said. Returns it if it is durable.

        Args:
            num_written: sum of `has_written` over all workers.
            is_sealed: `has_sealed` of rank 0.

        Raises:
            PlannerError: on every worker, if one of them could not write.
        """
        self._pruning.advance()
        if self._flight is None:
            return None
        if is_sealed:
            return self._land(self._flight)
        # A worker counts until its part is gathered, so the sum reaches W for all workers at the same step.
        if num_written == self._world.world_size:
            self._gather(self._flight)
        return None

    def finish(self) -> LandedCommit | None:
        """Wait until the commit in flight is durable, and return it. None if there is none.

        Raises:
            PlannerError: on every worker, if it cannot be written or another driver has taken over the run.
        """
        flight = self._flight
        if flight is None:
            return None
        began_s, before_s = time.monotonic(), flight.paused_s
        if not flight.is_gathered:
            self._gather(flight)
        with self._giving_up(flight):
            self._world.agree(lambda: flight.sealing.result() if flight.sealing else None)
        flight.paused_s = before_s + time.monotonic() - began_s
        landed = self._land(flight)
        self._world.agree(self._pruning.finish)
        return landed

    def give_up(self) -> None:
        """Give up the commit in flight without waiting, because the workers stop with a newer step in memory."""
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.abandon(waits=False)
        self._memory.copies.unpin()

    def close(self) -> None:
        """Abandon the commit in flight. Any worker may call it alone."""
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.abandon()
        self._pruning.advance()

    # -- steps of a commit

    def _held(
        self, step: int, cursor: int, head: str, live: Mapping[str, Tensor], *, is_last: bool
    ) -> tuple[Mapping[str, Tensor], Callable[[], None]]:
        """This worker's shards to write, and what to call before they are read: it waits, or raises why there are none.

        A worker that raised here would be alone, and the others would wait for it in their next collective. From the
        background, the error reaches all of them.
        """
        try:
            if is_last or not self._is_copied:
                synchronize(self._world.device)
                return live, lambda: None
            held = self._memory.take(step, live)
            self._memory.copies.pin(held)
            self._memory.publish(held, cursor, head)
        except Exception as error:  # noqa: BLE001  # contract: above
            return {}, partial(_raise, error)
        return held.shards, held.wait

    def _gather(self, flight: CommitInFlight) -> None:
        """Gather what all workers have written on rank 0, whose thread then writes the manifest.

        Raises:
            PlannerError: on every worker, if one of them could not write. If its disk is full, the files are removed.
        """
        began_s = time.monotonic()
        with self._giving_up(flight):
            mine = self._world.agree(flight.writing.result)
        flight.save_s = flight.writing.seconds
        # The timeout of collectives depends on it. Rank 0 adds the time of the manifest.
        flight.save_s = max(self._world.gather(flight.save_s))
        written = self._world.gather_on_first(mine)
        if self._world.rank == 0:
            seal = partial(self._files.seal, flight, written)
            flight.sealing = BackgroundWork(seal, partial(self._error, flight.step))
        flight.is_gathered = True
        flight.paused_s += time.monotonic() - began_s

    @contextmanager
    def _giving_up(self, flight: CommitInFlight) -> Iterator[None]:
        """Forget the commit if an error is raised on all workers. If a disk is full, remove the commit's files."""

        def remove() -> None:  # to make room for the ledger's last lines
            with suppress(StoreError):
                if flight.name not in self._run.commits():  # else the error came after its manifest
                    self._run.storage.delete(f"checkpoints/{flight.name}")

        try:
            yield
        except PlannerError as error:
            self._flight = None
            self._memory.copies.unpin()
            if isinstance(error, DiskFull):
                self._world.from_first(remove)
            raise

    def _land(self, flight: CommitInFlight) -> LandedCommit:
        """The commit is durable: record it."""
        write_s, save_s = time.monotonic() - flight.began_s, flight.save_s
        if flight.sealing is not None:
            manifest = flight.sealing.result()
            write_s = flight.sealing.ended_s - flight.began_s
            save_s += flight.sealing.seconds
            self._journal.record(
                CommitRecord(
                    step=flight.step,
                    name=flight.name,
                    sha256=digest_of(manifest),
                    seconds=flight.paused_s,
                    write_s=write_s,
                )
            )
            self._pruning.begin(flight.step)
        self._flight, self.save_s = None, save_s
        self._memory.copies.unpin()
        self._committed = f"step {flight.step}"
        return LandedCommit(step=flight.step, paused_s=flight.paused_s, write_s=write_s)

    def _error(self, step: int, error: Exception) -> PlannerError:
        """The error to raise on all workers for an exception in the background."""
        return commit_error(
            error,
            self._run,
            step=step,
            generation=self._journal.generation,
            committed=self._committed,
            state_bytes=self._state_bytes,
        )


def _raise(error: Exception) -> NoReturn:
    raise error
