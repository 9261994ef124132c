"""Writes a generation's records to the ledger. Only the training thread of rank 0 writes."""

import math
import platform
import time
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from typing import Any

import torch

from planner.base.text import as_submitted
from planner.base.version import VERSION
from planner.errors import PlannerError, StoreError
from planner.events.event import Event, facts_of
from planner.events.resuming import ChangeAccepted
from planner.events.training import HeldOutNotFinite
from planner.job import Job
from planner.plan import make_plan
from planner.store.jobs import job_digest
from planner.store.ledger import LedgerWriter
from planner.store.records import (
    AcceptedChange,
    EvalRecord,
    EventRecord,
    FileDigest,
    GenerationRecord,
    LoweredCapRecord,
    Manifest,
    Record,
)
from planner.store.run_folder import RunFolder
from planner.train.batches import Loader
from planner.train.evaluate import evaluate
from planner.train.objectives import Objective
from planner.train.resume_point import ResumePoint
from planner.train.setup import Setup
from planner.train.state import TrainState
from planner.train.world import World
from planner.wording.event_text import text_of


class Journal:
    """The ledger of one generation, and its evaluations. All workers call each method, if it says nothing else."""

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
        self._world, self._run, self._setup, self._start = world, run, setup, start
        self._state, self._loader = state, loader
        self._job_digest = job_digest(job) if start.has_job else world.from_first(lambda: run.keep_job(job))
        self._ledger: LedgerWriter | None = None
        self._failure: PlannerError | None = None
        world.from_first(self._open_ledger)
        if self._setup.order.num_held_out:
            sizes = replace(setup.sizes, global_batch=self._setup.order.num_held_out)
            self._eval_plan = make_plan(sizes, world.world_size)

    def _open_ledger(self) -> None:
        start, setup, plan, sizes = self._start, self._setup, self._setup.plan, self._setup.sizes
        header = GenerationRecord(
            generation=start.generation,
            run_id=start.run_id,
            parent=start.parent,
            parent_is_held=start.is_held,
            parent_sha256=start.parent_sha256,
            step=start.step,
            cursor=start.cursor,
            world_size=plan.world_size,
            max_micro=plan.max_micro,
            max_tokens=sizes.max_tokens,
            attention_at=sizes.attention_at,
            lowered=tuple(map(LoweredCapRecord.of, setup.lowered)),
            layout_version=plan.layout_version,
            plan_digest=plan.digest,
            identity=setup.identity,
            job_digest=self._job_digest,
            total_steps=setup.lengths.total_steps,
            num_samples=setup.order.num_samples,
            facts=setup.facts,
            accepted=tuple(
                AcceptedChange(field=change.field, before=change.before, now=change.now)
                for change in start.changed
                if isinstance(change, ChangeAccepted)
            ),
            changed=tuple(as_submitted(text_of(change)) for change in start.changed),
            launch_id=start.launch_id,
            launched_s=start.launched_s,
            time_s=time.time(),
        )
        self._ledger = LedgerWriter(self._run.storage, header, start.head)

    @property
    def failure(self) -> PlannerError | None:
        """The error after which the ledger cannot be written. Only rank 0 has it, so the loop must tell the others."""
        return self._failure

    def record(self, record: Record) -> None:
        """Write a record on rank 0. Keep an error for later: the other ranks would wait for rank 0 in a collective.

        After an error nothing more is written, as no line may follow a torn one.
        """
        if self._ledger is None or self._failure is not None:
            return
        try:
            self._ledger.write(record)
        except StoreError as error:
            self._failure = error

    def note(self, event: Event) -> None:
        """Write an event into the ledger, with its text. Any worker may call it. Only rank 0 writes."""
        self.record(
            EventRecord(
                event=event.name,
                facts=_as_submitted(facts_of(event)),
                message=as_submitted(text_of(event)),
                time_s=time.time(),
            )
        )

    def close(self) -> None:
        """Flush the last records to the store."""
        if self._ledger is not None and self._failure is None and not self._ledger.is_torn:
            self._ledger.flush()

    def evaluate(self, step: int, objective: Objective) -> None:
        """Evaluate on the held-out samples before step `step`, and record the result. Nothing if there are none.

        Raises:
            PlannerError: on every worker, if held-out samples cannot be read.
        """
        if not self._setup.order.num_held_out:
            return
        started_s = time.monotonic()
        loader = replace(self._loader, plan=self._eval_plan)
        found = evaluate(self._world, self._eval_plan, self._state.model, objective, loader)
        if not math.isfinite(found.loss):
            self.note(HeldOutNotFinite(step=step))
            return
        self.record(
            EvalRecord(
                step=step,
                samples=self._setup.order.num_held_out,
                tokens=found.tokens,
                loss=found.loss,
                metrics=found.metrics,
                seconds=time.monotonic() - started_s,
            )
        )

    # -- for commits

    @property
    def generation(self) -> int:
        """The number of this generation."""
        return self._start.generation

    @property
    def largest_evaluated(self) -> int:
        """The largest micro-batch of an evaluation, in samples. 0 without held-out samples."""
        return self._eval_plan.max_micro_batch if self._setup.order.num_held_out else 0

    @property
    def total_steps(self) -> int:
        """The optimizer steps of the whole job."""
        return self._setup.lengths.total_steps

    def stored_head(self) -> str:
        """Store all records, and return the head of their chain. Empty on other ranks, and after a failure."""
        if self._ledger is None or self._failure is not None:
            return ""
        try:
            self._ledger.flush()
        except StoreError as error:
            self._failure = error
            return ""
        return self._ledger.head

    def sync(self) -> None:
        """Make all stored records survive a power cut. Only rank 0, any thread.

        Raises:
            StoreError: the store cannot be used.
        """
        assert self._ledger is not None  # this is rank 0
        self._ledger.sync()

    def manifest(
        self, name: str, step: int, cursor: int, *, files: tuple[FileDigest, ...], tensors: dict[str, str], head: str
    ) -> Manifest:
        """The manifest of a commit. Any thread.

        Args:
            name: of the commit.
            step: all steps before it are in the commit.
            cursor: samples consumed.
            files: of all workers.
            tensors: the certificate, or empty.
            head: of the ledger when the step was held.
        """
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


def _as_submitted(fact: Any) -> Any:
    """A fact with the paths in its texts as in the folder that the job was submitted from."""
    if isinstance(fact, dict):
        return {name: _as_submitted(each) for name, each in fact.items()}
    if isinstance(fact, list):
        return [_as_submitted(each) for each in fact]
    return as_submitted(fact) if isinstance(fact, str) else fact


def _versions() -> dict[str, str]:
    """Versions of the software that makes a commit. Without Ray if it is not installed."""
    found = {"planner": VERSION, "python": platform.python_version(), "torch": torch.__version__}
    with suppress(metadata.PackageNotFoundError):
        found["ray"] = metadata.version("ray")
    return found
