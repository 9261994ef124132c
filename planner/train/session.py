"""One generation on one worker, from waking up to the outcome.

Every worker derives everything for itself (plan, order, total steps) from the job, the world size it woke in
and the facts; digests are compared before the first step. Whatever is wrong is agreed upon: either all workers
go on, or all raise the same error.
"""

import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

import torch

import planner
from planner.errors import PlannerError, StoreError
from planner.job import Job
from planner.plan.memory import choose_accumulator
from planner.store.past import read_past
from planner.store.run import Run
from planner.store.storage import Storage
from planner.train import checkpoint, determinism
from planner.train.batches import Loader
from planner.train.claim import Start, claim
from planner.train.determinism import free_bytes
from planner.train.gradient_sums import FixedPointSums, FloatSums
from planner.train.journal import Journal
from planner.train.loop import Hooks, Loop, Outcome
from planner.train.objectives import make_objective
from planner.train.optimize import make_optimizer
from planner.train.pace import EverySteps, MeasuredPace, Pace
from planner.train.setup import Launch, Setup, set_up
from planner.train.shard import build_model, shard
from planner.train.state import TrainState
from planner.train.world import World


def train(launch: Launch, choose_device: Callable[[], torch.device], hooks: Hooks) -> Outcome:
    """Run one generation in the process group that is initialised already. Every worker calls it.

    Raises:
        PlannerError: on every worker, the same one.
    """
    world = World.join(choose_device)
    run = world.agree(lambda: Run(Storage(launch.url)))
    _require_shared_storage(world, run.storage)
    setup = world.agree(lambda: set_up(launch.job, world.world_size))
    world.require_equal("the version of planner", planner.__version__)
    world.require_equal("the data", setup.identity.data)
    world.require_equal("the plan", setup.plan.digest)
    if launch.job.batch.equality == "bitwise":
        setup = replace(setup, device=determinism.device_words(world.device))
        world.require_equal("what the bits depend on", setup.device)

    job = launch.job
    # Claimed before the model is built: a crash loop there is counted, too.
    start, manifest = claim(launch, world, run, setup)
    state = _make_state(job, world, setup)
    if manifest is not None:
        checkpoint.load(world, run.storage, manifest, state, setup.identity)
    objective = make_objective(job.objective)
    journal = Journal(job, world, run, setup, start, state, objective)
    loader = Loader(dataset=setup.dataset, order=setup.order, plan=setup.plan, rank=world.rank)
    loop = Loop(
        job=job,
        world=world,
        plan=setup.plan,
        state=state,
        objective=objective,
        loader=loader,
        journal=journal,
        pace=_make_pace(job, world, run, start),
        hooks=hooks,
        total_steps=setup.total_steps,
    )
    try:
        with determinism.named_refusals():
            return loop.run(start.step, start.cursor)
    except PlannerError as error:
        journal.note(f"stopped: {error}")
        raise
    finally:
        journal.close()


def _make_state(job: Job, world: World, setup: Setup) -> TrainState:
    """The model in shards, an optimizer over them, and the way its gradients are summed."""
    determinism.set_up(job)
    model = shard(build_model(job.model, job.train), world, job.train)
    optimizer = make_optimizer(job.train.optimizer, model)
    if job.batch.equality == "bitwise":
        num_parameters = sum(p.numel() for p in model.parameters())
        where = choose_accumulator(setup.plan, num_parameters, free_bytes(world.device))
        return TrainState(
            model=model,
            optimizer=optimizer,
            sums=FixedPointSums(model, world, setup.plan.num_micro_batches, world.from_first(lambda: where)),
        )
    return TrainState(model=model, optimizer=optimizer, sums=FloatSums(model))


def _make_pace(job: Job, world: World, run: Run, start: Start) -> Pace:
    """When to commit; only rank 0 will be asked."""
    every_steps = job.checkpoint.every_steps
    if every_steps != "auto":
        return EverySteps(every_steps)
    past = world.from_first(lambda: read_past(run, before=start.generation, now_s=time.time()))
    return MeasuredPace(past, start.step)


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
