"""Writes a generation's records to the run's folder: rank 0 writes the ledger, all ranks write checkpoints."""

import math
import platform
import time
from contextlib import suppress
from dataclasses import replace
from importlib import metadata

import torch

from planner.base.version import VERSION
from planner.errors import DiskFull, PlannerError, StoreError
from planner.job import Job, batch_sizes
from planner.plan import make_plan
from planner.store.ledger import LedgerWriter
from planner.store.records import (
    CommitRecord,
    EvalRecord,
    EventRecord,
    FileDigest,
    GenerationRecord,
    Manifest,
    Record,
    StepRecord,
    digest_of,
)
from planner.store.run_folder import RunFolder, commit_name
from planner.train.batches import Loader
from planner.train.checkpoints import checkpoint
from planner.train.evaluate import evaluate
from planner.train.objectives import Objective
from planner.train.resume import ResumePoint
from planner.train.setup import Setup
from planner.train.state import TrainState
from planner.train.world import World


class Journal:
    """The ledger and the commits of one generation. All workers call each method but `note` and `close` together."""

    def __init__(
        self,
        job: Job,
        world: World,
        run: RunFolder,
        setup: Setup,
        start: ResumePoint,
        state: TrainState,
        loader: Loader,
    ) -> None:
        self._job, self._world, self._run, self._setup, self._start = job, world, run, setup, start
        self._state, self._loader = state, loader
        self._job_digest = world.from_first(lambda: run.keep_job(job))
        self._ledger: LedgerWriter | None = None
        self._failure: PlannerError | None = None
        self._committed = f"step {start.step}" if start.parent else "none"
        world.from_first(self._open_ledger)
        if job.eval.samples:
            self._eval_plan = make_plan(replace(batch_sizes(job), global_batch=job.eval.samples), world.world_size)

    def _open_ledger(self) -> None:
        start, setup, plan = self._start, self._setup, self._setup.plan
        header = GenerationRecord(
            generation=start.generation,
            run_id=start.run_id,
            parent=start.parent,
            parent_sha256=start.parent_sha256,
            step=start.step,
            cursor=start.cursor,
            world_size=plan.world_size,
            max_micro=plan.max_micro,
            layout_version=plan.layout_version,
            plan_digest=plan.digest,
            identity=setup.identity,
            job_digest=self._job_digest,
            total_steps=setup.lengths.total_steps,
            num_samples=setup.order.num_samples,
            facts=setup.facts,
            changed=start.changed,
            time_s=time.time(),
        )
        self._ledger = LedgerWriter(self._run.storage, header, start.head)

    @property
    def failure(self) -> PlannerError | None:
        """The error after which the ledger cannot be written. Only rank 0 has it, so the loop must tell the others."""
        return self._failure

    def _write(self, record: Record) -> None:
        """Write a record on rank 0. Keep an error for later: the other ranks would wait for rank 0 in a collective.

        After an error nothing more is written, as no line may follow a torn one.
        """
        if self._ledger is None or self._failure is not None:
            return
        try:
            self._ledger.write(record)
        except StoreError as error:
            self._failure = error

    def note(self, message: str) -> None:
        """Write a message for people into the ledger. Any worker may call it. Only rank 0 writes."""
        self._write(EventRecord(message=message, time_s=time.time()))

    def close(self) -> None:
        """Flush the last records to the store."""
        if self._ledger is not None and self._failure is None and not self._ledger.is_torn:
            self._ledger.flush()

    def record_step(self, record: StepRecord) -> None:
        """Write the record of a completed step."""
        self._write(record)

    def evaluate(self, step: int, objective: Objective) -> None:
        """Evaluate on the held-out samples before step `step`, and record the result. Nothing if there are none.

        Raises:
            PlannerError: on every worker, if held-out samples cannot be read.
        """
        if not self._job.eval.samples:
            return
        started_s = time.monotonic()
        loader = replace(self._loader, plan=self._eval_plan)
        found = evaluate(self._world, self._eval_plan, self._state.model, objective, loader)
        if not math.isfinite(found.loss):
            self.note(f"step {step}: the held-out loss is not finite")
            return
        self._write(
            EvalRecord(
                step=step,
                samples=self._job.eval.samples,
                tokens=found.tokens,
                loss=found.loss,
                metrics=found.metrics,
                seconds=time.monotonic() - started_s,
            )
        )

    def commit(self, step: int, cursor: int) -> None:
        """Write shards, then digests, then the manifest, which completes the commit. Then remove old commits' files.

        Raises:
            PlannerError: on every worker, if the commit cannot be written or another driver has taken over the run.
        """
        try:
            self._commit(step, cursor)
        except DiskFull as error:
            raise DiskFull(f"step {step} cannot be committed (last commit: {self._committed}): {error}") from error
        self._committed = f"step {step}"

    def _commit(self, step: int, cursor: int) -> None:
        started_s = time.monotonic()
        name = commit_name(step, self._start.generation)
        folder = f"checkpoints/{name}"
        self._world.from_first(lambda: self._run.require_current(self._start.generation))
        is_certificate = self._job.batch.equality == "bitwise" and step == self._setup.lengths.total_steps
        tensors = self._state.digests(self._world.rank) if is_certificate else {}
        self._save(folder)
        files = checkpoint.file_digests(self._world, self._run.storage, folder)

        def write_manifest() -> None:
            if self._failure is not None:
                raise self._failure
            assert self._ledger is not None  # this is rank 0
            self._ledger.flush(durable=True)
            manifest = self._manifest(name, step, cursor, files, tensors, self._ledger.head)
            self._run.put_manifest(manifest)
            seconds = time.monotonic() - started_s
            self._write(CommitRecord(step=step, name=name, sha256=digest_of(manifest), seconds=seconds))
            self._run.prune(self._job.checkpoint.keep, self._start.generation)

        self._world.from_first(write_manifest)

    def _save(self, folder: str) -> None:
        """Write the shards. If the disk is full, remove them again, to make room for the ledger's last lines.

        Raises:
            PlannerError: on every worker, if they cannot be written.
        """
        storage = self._run.storage

        def remove() -> None:
            with suppress(StoreError):
                storage.delete(folder)

        try:
            checkpoint.save(storage, folder, self._state)
        except OSError as error:
            self._world.from_first(remove)
            needed_bytes = sum(tensor.numel() * tensor.element_size() for tensor in self._state.tensors().values())
            raise DiskFull(storage.disk_full_text(error, "a commit", needed_bytes)) from error

    def _manifest(
        self,
        name: str,
        step: int,
        cursor: int,
        files: tuple[FileDigest, ...],
        tensors: dict[str, str],
        head: str,
    ) -> Manifest:
        return Manifest(
            run_id=self._start.run_id,
            name=name,
            generation=self._start.generation,
            parent=self._start.parent,
            step=step,
            cursor=cursor,
            total_steps=self._setup.lengths.total_steps,
            identity=self._setup.identity,
            plan_digest=self._setup.plan.digest,
            world_size=self._world.world_size,
            facts=self._setup.facts,
            job_digest=self._job_digest,
            ledger_head=head,
            files=files,
            tensors=tensors,
            versions=_versions(),
            time_s=time.time(),
        )


def _versions() -> dict[str, str]:
    """Versions of the software that makes a commit. Without Ray if it is not installed."""
    found = {"planner": VERSION, "python": platform.python_version(), "torch": torch.__version__}
    with suppress(metadata.PackageNotFoundError):
        found["ray"] = metadata.version("ray")
    return found
