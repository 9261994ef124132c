"""One generation on one worker, from waking up to the outcome.

Every worker derives everything for itself (plan, order, total steps) from the job, the world size it woke in
and the facts; digests are compared before the first step. Whatever is wrong is agreed upon: either all workers
go on, or all raise the same error.
"""

import math
import platform
import socket
import time
import uuid
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

import torch
from torch import nn

import planner
from planner.data import Dataset
from planner.errors import PlannerError, StoreError, TrainingFailed
from planner.identity import identity_of, open_data, require_same, total_steps
from planner.job import Job, digest
from planner.order.order import Order
from planner.plan import BatchSizes, Facts, Plan, batch_sizes, choose
from planner.store.ledger import LedgerWriter
from planner.store.records import (
    NO_HEAD,
    CommitRecord,
    EvalRecord,
    EventRecord,
    GenerationRecord,
    Identity,
    Manifest,
    Record,
    StepRecord,
)
from planner.store.run import Run, commit_name
from planner.store.storage import Storage
from planner.train import checkpoint
from planner.train.batches import Loader
from planner.train.evaluate import evaluate
from planner.train.loop import Hooks, Loop, Outcome
from planner.train.objectives import Objective, make_objective
from planner.train.optimize import make_optimizer
from planner.train.shard import build_model, shard
from planner.train.world import World

# A launch whose worker groups die this often before their first commit would go on for ever without progress.
MAX_FRUITLESS_GENERATIONS = 10


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What the driver says to every worker, in every generation of one launch."""

    job: Job
    url: str
    """the run's folder"""
    launch_id: str = ""
    accept: frozenset[str] = frozenset()
    """fields of the run's identity that may differ on resume, because the user named them"""


@dataclass(frozen=True, kw_only=True)
class _Setup:
    """What every worker derives for itself."""

    dataset: Dataset
    order: Order
    identity: Identity
    total_steps: int
    plan: Plan


@dataclass(frozen=True, kw_only=True)
class _Start:
    """Where this generation begins."""

    generation: int
    run_id: str
    step: int
    cursor: int
    parent: str
    head: str
    changed: tuple[str, ...]


def train(launch: Launch, device: torch.device, hooks: Hooks) -> Outcome:
    """Run one generation in the process group that is initialised already. Every worker calls it.

    Raises:
        PlannerError: on every worker, the same one.
    """
    world = World.join(device)
    run = world.agree(lambda: Run(Storage(launch.url)))
    _require_shared_storage(world, run.storage)
    setup = world.agree(lambda: _set_up(launch.job, world.world_size))
    world.require_equal("the version of planner", planner.__version__)
    world.require_equal("the data", setup.identity.data)
    world.require_equal("the plan", setup.plan.digest)

    job = launch.job
    # Claimed before the model is built: a crash loop there is counted, too.
    start, manifest = _claim(launch, world, run, setup)
    model = shard(build_model(job.model, job.train), world, job.train)
    optimizer = make_optimizer(job.train.optimizer, model)
    if manifest is not None:
        world.agree(lambda: checkpoint.load(run.storage, manifest, model, optimizer))
    objective = make_objective(job.objective)
    journal = _Journal(job, world, run, setup, start, model, optimizer, objective)
    loader = Loader(dataset=setup.dataset, order=setup.order, plan=setup.plan, rank=world.rank)
    loop = Loop(
        job=job,
        world=world,
        plan=setup.plan,
        model=model,
        optimizer=optimizer,
        objective=objective,
        loader=loader,
        journal=journal,
        hooks=hooks,
        total_steps=setup.total_steps,
    )
    try:
        return loop.run(start.step, start.cursor)
    except PlannerError as error:
        journal.note(f"stopped: {error}")
        raise
    finally:
        journal.close()


def _set_up(job: Job, world_size: int) -> _Setup:
    dataset, order = open_data(job)
    return _Setup(
        dataset=dataset,
        order=order,
        identity=identity_of(job, dataset, order),
        total_steps=total_steps(job, order),
        plan=choose(batch_sizes(job), world_size, Facts()),
    )


def _require_shared_storage(world: World, storage: Storage) -> None:
    """Rank 0 writes a nonce and every rank reads it.

    A path on each host's own disk would train happily, and lose every shard but the first host's.
    """
    nonce = world.from_first(lambda: uuid.uuid4().hex)
    name = f"probe-{nonce}"
    world.from_first(lambda: storage.write(name, nonce.encode()))
    hosts = world.gather(socket.gethostname())

    def read() -> None:
        if storage.read_from(name, 0) != nonce.encode():
            raise StoreError(
                f"{storage.url}: {hosts[world.rank]} does not see what {hosts[0]} wrote there; "
                "set checkpoint.path to storage that every node shares"
            )

    try:
        world.agree(read)
    finally:
        world.from_first(lambda: storage.delete(name))


# -- the claim


def _claim(launch: Launch, world: World, run: Run, setup: _Setup) -> tuple[_Start, Manifest | None]:
    """Find the newest commit that can be trusted, and claim the generation that goes on from it.

    Raises:
        PlannerError: on every worker: the run's identity differs, or no progress is being made.
    """
    run_id = world.from_first(lambda: run.ensure_identity().run_id)
    manifest, passed_over = _newest_valid(world, run)
    changed = world.agree(lambda: _compare(launch, run, setup.identity, manifest))
    parent = manifest.name if manifest else ""
    claim = {"launch": launch.launch_id, "parent": parent, "host": socket.gethostname()}
    world.from_first(lambda: _require_progress(run, launch.launch_id, parent))
    generation = world.from_first(lambda: run.claim_generation(claim))
    start = _Start(
        generation=generation,
        run_id=run_id,
        step=manifest.step if manifest else 0,
        cursor=manifest.cursor if manifest else 0,
        parent=parent,
        head=manifest.ledger_head if manifest else NO_HEAD,
        changed=(*passed_over, *changed),
    )
    return start, manifest


def _newest_valid(world: World, run: Run) -> tuple[Manifest | None, list[str]]:
    """The newest commit whose files are whole, and what was wrong with newer ones.

    Raises:
        StoreError: on every worker, if there are commits and none is whole.
    """
    names = world.from_first(lambda: run.commits()[::-1])
    refused: list[str] = []
    for name in names:
        try:
            manifest = world.agree(partial(run.manifest, name))
            checkpoint.check_some_files(world, run, manifest)
        except StoreError as error:
            refused.append(f"commit {name} was passed over: {error}")
        else:
            return manifest, refused
    if refused:
        raise StoreError(
            f"{run.storage.url}: none of {len(names)} commits is whole; {refused[0]}; "
            "restore the files, or start again with another checkpoint.path"
        )
    return None, refused


def _compare(launch: Launch, run: Run, identity: Identity, manifest: Manifest | None) -> list[str]:
    """What differs from the job that the run was made with, in words.

    Raises:
        ResumeRefused: the run's identity differs, and the user has not named the difference.
    """
    if manifest is None:
        return []
    accepted = require_same(manifest.identity, identity, launch.accept, run.storage.url)
    return accepted + _job_changes(run, manifest.job_digest, launch.job)


def _job_changes(run: Run, before: str, job: Job) -> list[str]:
    """Settings outside of the identity that differ, in words."""
    if before == digest(job):
        return []
    old, new = _flat(run.job(before).model_dump(mode="json")), _flat(job.model_dump(mode="json"))
    return [f"{key}: {old.get(key)} -> {new.get(key)}" for key in sorted({*old, *new}) if old.get(key) != new.get(key)]


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat.update(_flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {f"{prefix}{key}": item})
    return flat


def _require_progress(run: Run, launch_id: str, parent: str) -> None:
    """Stop a crash loop: the same launch, from the same commit, again and again.

    Raises:
        TrainingFailed: `MAX_FRUITLESS_GENERATIONS` generations of this launch have died without a commit.
    """
    fruitless = 0
    for claim in run.newest_claims(MAX_FRUITLESS_GENERATIONS):
        if not launch_id or (claim.get("launch"), claim.get("parent")) != (launch_id, parent):
            break
        fruitless += 1
    if fruitless >= MAX_FRUITLESS_GENERATIONS:
        raise TrainingFailed(
            f"{run.storage.url}: {fruitless} worker groups in a row died before their first commit, all from "
            f"{parent or 'the start'}; look at the workers' logs, commit more often, then run again"
        )


# -- the journal


class _Journal:
    """Tells the run's folder what happens: rank 0 writes the ledger, all ranks write checkpoints."""

    def __init__(
        self,
        job: Job,
        world: World,
        run: Run,
        setup: _Setup,
        start: _Start,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
    ) -> None:
        self._job, self._world, self._run, self._setup, self._start = job, world, run, setup, start
        self._model, self._optimizer, self._objective = model, optimizer, objective
        self._job_digest = world.from_first(lambda: run.keep_job(job))
        self._ledger: LedgerWriter | None = None
        world.from_first(self._open_ledger)
        if job.eval.samples:
            self._eval_plan = choose(
                BatchSizes(global_batch=job.eval.samples, max_micro=job.batch.max_micro),
                world.world_size,
                Facts(),
            )

    def _open_ledger(self) -> None:
        start, setup, plan = self._start, self._setup, self._setup.plan
        header = GenerationRecord(
            generation=start.generation,
            run_id=start.run_id,
            parent=start.parent,
            step=start.step,
            cursor=start.cursor,
            world_size=plan.world_size,
            max_micro=plan.max_micro,
            plan_digest=plan.digest,
            identity=setup.identity,
            job_digest=self._job_digest,
            total_steps=setup.total_steps,
            num_samples=setup.order.num_samples,
            facts={},
            changed=start.changed,
            time_s=time.time(),
        )
        self._ledger = LedgerWriter(self._run.storage, header, start.head)

    def _write(self, record: Record) -> None:
        if self._ledger is not None:
            self._ledger.write(record)

    def note(self, message: str) -> None:
        self._write(EventRecord(message=message, time_s=time.time()))

    def close(self) -> None:
        """Hand the last records to the store."""
        if self._ledger is not None:
            self._ledger.flush()

    def record_step(self, record: StepRecord) -> None:
        self._write(record)

    def evaluate(self, step: int) -> None:
        if not self._job.eval.samples:
            return
        started_s = time.monotonic()
        loader = Loader(
            dataset=self._setup.dataset, order=self._setup.order, plan=self._eval_plan, rank=self._world.rank
        )
        loss, tokens = evaluate(self._world, self._eval_plan, self._model, self._objective, loader)
        if not math.isfinite(loss):
            self.note(f"step {step}: the held-out loss is not finite")
            return
        self._write(
            EvalRecord(
                step=step,
                samples=self._job.eval.samples,
                tokens=tokens,
                loss=loss,
                seconds=time.monotonic() - started_s,
            )
        )

    def commit(self, step: int, cursor: int) -> None:
        """Shards, then digests, then the manifest, which makes it a commit; then old files go.

        Raises:
            PlannerError: on every worker: it could not be written, or the run has been taken over.
        """
        started_s = time.monotonic()
        name = commit_name(step, self._start.generation)
        folder = f"checkpoints/{name}"
        self._world.from_first(lambda: self._run.require_current(self._start.generation))
        checkpoint.save(self._run.storage, folder, self._model, self._optimizer)
        files = checkpoint.file_digests(self._world, self._run.storage, folder)

        def write_manifest() -> None:
            assert self._ledger is not None  # this is rank 0
            self._ledger.flush(durable=True)
            self._run.put_manifest(self._manifest(name, step, cursor, files, self._ledger.head))
            self._write(CommitRecord(step=step, name=name, seconds=time.monotonic() - started_s))
            self._run.prune(self._job.checkpoint.keep, self._start.generation)

        self._world.from_first(write_manifest)

    def _manifest(self, name: str, step: int, cursor: int, files: Any, head: str) -> Manifest:
        return Manifest(
            run_id=self._start.run_id,
            name=name,
            generation=self._start.generation,
            parent=self._start.parent,
            step=step,
            cursor=cursor,
            total_steps=self._setup.total_steps,
            identity=self._setup.identity,
            plan_digest=self._setup.plan.digest,
            world_size=self._world.world_size,
            facts={},
            job_digest=self._job_digest,
            ledger_head=head,
            files=files,
            versions={
                "planner": planner.__version__,
                "python": platform.python_version(),
                "ray": metadata.version("ray"),
                "torch": torch.__version__,
            },
            time_s=time.time(),
        )
