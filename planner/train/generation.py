"""One generation on one worker, from waking up to the outcome.

Every worker derives everything for itself (plan, order, total steps) from the job, the world size it woke in
and the facts; digests are compared before the first step. Whatever is wrong is agreed upon: either all workers
go on, or all raise the same error.
"""

import contextlib
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from planner.base.version import VERSION
from planner.data.dataset import SampleDataset, notes_of
from planner.errors import PlannerError, StoreError
from planner.job import HfModel, Job, OwnModel
from planner.job.lengths import Lengths, conversions, repeats
from planner.plan.memory import choose_accumulator
from planner.store.past import read_past
from planner.store.records import Manifest
from planner.store.run import Run
from planner.store.storage import Storage
from planner.train.batches import Loader, MakeBatch, token_batch
from planner.train.checkpoints import checkpoint
from planner.train.checkpoints.state import TrainState
from planner.train.claim import Start, claim
from planner.train.exact import determinism
from planner.train.exact.determinism import free_bytes
from planner.train.exact.gradient_sums import FixedPointSums, FloatSums, GradientSums
from planner.train.journal import Journal
from planner.train.loop import Hooks, Loop, Outcome
from planner.train.objectives import Objective, make_objective
from planner.train.objectives.kto import require_both_kinds
from planner.train.optimize import make_optimizer
from planner.train.pace import EverySteps, MeasuredPace, Pace
from planner.train.reference.cache import CachedReference, Computing, StopAsked, parts_of
from planner.train.reference.frozen import Reference, make_reference, make_reference_model
from planner.train.sample_batches import MakeFeedbackBatch, pair_batch, text_batch
from planner.train.setup import Launch, Setup, set_up
from planner.train.shard import make_model
from planner.train.world import World

if TYPE_CHECKING:
    from planner.train.models.hf import HfCausal

Note = Callable[[str], None]
"""writes an event into the ledger"""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One life of a worker group, on one worker: where it begins, before there is a model."""

    job: Job
    world: World
    run: Run
    setup: Setup
    start: Start
    manifest: Manifest | None
    """the commit to go on from"""
    hooks: Hooks


def train(launch: Launch, choose_device: Callable[[], torch.device], hooks: Hooks) -> Outcome:
    """Run one generation in the process group that is initialised already. Every worker calls it.

    Raises:
        PlannerError: on every worker, the same one.
    """
    generation = begin(launch, choose_device, hooks)
    if launch.job.is_own:
        from planner.train.custom_loop import train_own

        return train_own(generation)
    state = make_state(generation)

    def objective(note: Note) -> Objective:
        if launch.job.objective.kind == "kto":
            dataset = cast("SampleDataset", generation.setup.dataset)
            generation.world.from_first(lambda: require_both_kinds(dataset, generation.setup.order))
        return make_objective(launch.job.objective, _reference(generation, state, note))

    try:
        with looping(generation, state, objective, make_batch_of(launch.job)) as loop:
            return loop.run(generation.start.step, generation.start.cursor)
    except StopAsked:
        return Outcome(step=generation.start.step, total_steps=generation.setup.lengths.total_steps, repeated_steps=0)


def begin(launch: Launch, choose_device: Callable[[], torch.device], hooks: Hooks) -> Generation:
    """Meet the other workers, agree on everything that each derives for itself, and claim a generation.

    Raises:
        PlannerError: on every worker, the same one.
    """
    world = World.join(choose_device)
    run = world.agree(lambda: Run(Storage(launch.url)))
    _require_shared_storage(world, run.storage)
    setup = world.agree(lambda: set_up(launch.job, world.world_size))
    world.require_equal("the version of planner", VERSION)
    world.require_equal("the data", setup.identity.data)
    world.require_equal("the model's files", setup.model)
    world.require_equal("the plan", setup.plan.digest)
    if launch.job.batch.equality == "bitwise":
        words = f"{determinism.device_words(world.device)}, layout {setup.plan.layout_version}"
        setup = replace(setup, device=words)
        world.require_equal("what the bits depend on", setup.device)
    # Claimed before the model is built: a crash loop there is counted, too.
    start, manifest = claim(launch, world, run, setup)
    determinism.set_up(launch.job)
    return Generation(job=launch.job, world=world, run=run, setup=setup, start=start, manifest=manifest, hooks=hooks)


@contextlib.contextmanager
def looping(
    generation: Generation,
    state: TrainState,
    objective_of: Callable[[Note], Objective],
    make_batch: MakeBatch = token_batch,
) -> Iterator[Loop]:
    """The loop of a generation, with the commit that it goes on from in `state`; its journal is closed afterwards.

    `objective_of` may take long, and note in the ledger how far it is.

    Raises:
        PlannerError: on every worker, the same one.
    """
    job, world, run = generation.job, generation.world, generation.run
    setup, start = generation.setup, generation.start
    if generation.manifest is not None:
        checkpoint.load(world, run.storage, generation.manifest, state, setup.identity)
    loader = Loader(
        dataset=setup.dataset,
        order=setup.order,
        plan=setup.plan,
        rank=world.rank,
        make_batch=make_batch,
        is_coupled=job.objective.kind == "kto",
    )
    journal = Journal(job, world, run, setup, start, state, loader)
    if not start.parent or start.changed:  # a resize changes none of them
        for words in (*conversions(job, setup.order.num_samples), *_notes(job, setup, state)):
            journal.note(words)
    try:
        with determinism.named_refusals():
            yield Loop(
                job=job,
                world=world,
                plan=setup.plan,
                state=state,
                objective=objective_of(journal.note),
                loader=loader,
                journal=journal,
                pace=_make_pace(setup.lengths, world, run, start),
                hooks=generation.hooks,
                lengths=setup.lengths,
            )
    except PlannerError as error:
        journal.note(f"stopped: {error}")
        raise
    finally:
        journal.close()


def _notes(job: Job, setup: Setup, state: TrainState) -> Iterator[str]:
    """What became of the data and of the model, where not all is as the job's few words have it."""
    yield from (f"data: {words}" for words in notes_of(setup.dataset))
    if words := repeats(job, setup.order.num_samples):
        yield f"data: {words}"
    if isinstance(job.model, HfModel) and job.model.lora is not None:
        from planner.train.models.hf import adapters_words

        yield f"model: {adapters_words(cast('HfCausal', state.model))}"


def make_batch_of(job: Job) -> MakeBatch:
    """How rows of a job's data become a micro-batch."""
    if job.data.kind == "chat":
        return text_batch
    if job.data.kind == "pairs":
        return pair_batch
    if job.data.kind == "feedback":
        assert not isinstance(job.model, OwnModel)  # the job was checked at birth
        return MakeFeedbackBatch(job.model.context)
    return token_batch


def _reference(generation: Generation, state: TrainState, note: Note) -> Reference:
    """What the policy is held to: by forward passes at every step, or from the table in the run's folder.

    Raises:
        StopAsked: on every worker, before all of the table was computed.
        PlannerError: on every worker, the same one.
    """
    job, world, setup, start = generation.job, generation.world, generation.setup, generation.start
    if job.objective.reference != "cached":
        return make_reference(job, world)
    dataset = cast("SampleDataset", setup.dataset)
    has_first_weights = generation.manifest is None and getattr(job.objective, "reference_model", None) is None
    computing = Computing(
        world=world,
        parts=parts_of(job, f"{setup.identity.model} {setup.model}", dataset, generation.run.storage),
        dataset=dataset,
        # A policy that has taken no step is its own reference.
        make_model=lambda: state.model if has_first_weights else make_reference_model(job, world),
        note=note,
        should_stop=lambda: generation.hooks.should_stop(start.step),
    )
    return CachedReference(computing.table())


def make_state(generation: Generation) -> TrainState:
    """The job's model in shards, an optimizer over them, and the way its gradients are summed.

    Raises:
        UserError: on every worker, the model cannot be made or cannot read the data.
    """
    job, world = generation.job, generation.world
    is_fresh = generation.manifest is None
    model = make_model(job.model, job.train, world, first_weights=is_fresh)
    # Before a commit is read the weights of one that goes on are nothing; its run was checked when it began.
    if is_fresh and isinstance(job.model, HfModel) and getattr(job.data, "packing", False):
        from planner.train.models.hf import require_packed

        world.agree(partial(require_packed, cast("HfCausal", model)))
    # After a forward pass alone some would be whole, and an optimizer over those would train nothing.
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    optimizer = make_optimizer(job.train.optimizer, model)
    return TrainState.of(model, optimizer, make_sums(generation, model), only_trained=True)


def make_sums(generation: Generation, model: nn.Module) -> GradientSums:
    """How the job wants its gradients summed."""
    if generation.job.batch.equality != "bitwise":
        return FloatSums(model)
    world, plan = generation.world, generation.setup.plan
    num_parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    where = choose_accumulator(plan, num_parameters, free_bytes(world.device))
    return FixedPointSums(model, world, plan.num_micro_batches, world.from_first(lambda: where))


def _make_pace(lengths: Lengths, world: World, run: Run, start: Start) -> Pace:
    """When to commit; only rank 0 will be asked."""
    if lengths.commit_every != "auto":
        return EverySteps(lengths.commit_every)
    past = world.from_first(lambda: read_past(run, before=start.generation, now_s=time.time()))
    return MeasuredPace(past, start.step, lengths.total_steps)


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
