"""The begin and the end of a generation: workers agree, claim it, and resume from the newest commit.

Every worker derives plan, order and total steps by itself, from the job and its world size. Digests are compared
before the first step. On any error, all workers raise the same one.
"""

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import nn

from planner.base.version import VERSION
from planner.errors import PlannerError, StoreError
from planner.job import HfModel, Job
from planner.job.step_schedule import StepSchedule, conversions, repeated_data_note
from planner.plan.accumulator_placement import accumulator_placement
from planner.store.earlier_generations import read_earlier
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.batches import Loader, MakeBatch, token_batch
from planner.train.checkpoints import checkpoint
from planner.train.exact import determinism
from planner.train.exact.gradient_sums import FixedPointSums, FloatSums, GradientSums
from planner.train.hooks import Hooks
from planner.train.journal import Journal
from planner.train.loop import Loop
from planner.train.models.hf import HfCausal, adapters_text
from planner.train.objectives import Objective
from planner.train.pace import EverySteps, MeasuredPace, Pace
from planner.train.resume import ResumePoint, claim
from planner.train.setup import Launch, Setup, set_up
from planner.train.state import TrainState
from planner.train.world import World

Note = Callable[[str], None]
"""writes an event into the ledger"""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One worker's view of a generation at its start, before there is a model."""

    job: Job
    world: World
    run: RunFolder
    setup: Setup
    start: ResumePoint
    manifest: Manifest | None
    """of the commit to resume from. None for a new run"""
    hooks: Hooks


def begin(launch: Launch, choose_device: Callable[[], torch.device], hooks: Hooks) -> Generation:
    """Join the other workers, compare what each derives by itself, and claim a generation.

    Raises:
        PlannerError: the same error on every worker.
    """
    world = World.join(choose_device)
    run = world.agree(lambda: RunFolder(Storage(launch.url)))
    _require_shared_storage(world, run.storage)
    setup = world.agree(lambda: set_up(launch.job, world.world_size))
    world.require_equal("the version of planner", VERSION)
    world.require_equal("the data", setup.identity.data)
    world.require_equal("the model's files", setup.model)
    world.require_equal("the plan", setup.plan.digest)
    if launch.job.batch.equality == "bitwise":
        device = f"{determinism.device_text(world.device)}, layout {setup.plan.layout_version}"
        setup = replace(setup, device=device)
        world.require_equal("the device (bitwise results depend on it)", setup.device)
    # Claimed before the model is built, so that a crash loop there is counted too.
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
    """Load the commit to resume from into `state`, and give the generation's loop. Closes the journal at the end.

    `objective_of` may take long. It gets a function that writes its progress into the ledger.

    Raises:
        PlannerError: the same error on every worker.
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
        is_coupled=job.data.kind == "feedback",
    )
    journal = Journal(job, world, run, setup, start, state, loader)
    if not start.parent or start.changed:  # a resize changes none of these notes
        for message in (*conversions(job, setup.order.num_samples), *_notes(job, setup, state)):
            journal.note(message)
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
    """Notes for the ledger: rows that were changed or repeat, and the number of layers with adapters."""
    yield from (f"data: {note}" for note in setup.dataset.notes)
    if note := repeated_data_note(job, setup.order.num_samples):
        yield f"data: {note}"
    if isinstance(job.model, HfModel) and job.model.lora is not None:
        yield f"model: {adapters_text(cast('HfCausal', state.model))}"


def make_sums(generation: Generation, model: nn.Module) -> GradientSums:
    """The gradient sums of the job: float32, or fixed point for `bitwise`."""
    if generation.job.batch.equality != "bitwise":
        return FloatSums(model)
    world, plan = generation.world, generation.setup.plan
    num_parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    where = accumulator_placement(plan, num_parameters, _free_bytes(world.device))
    return FixedPointSums(model, world, plan.num_micro_batches, world.from_first(lambda: where))


def _free_bytes(device: torch.device) -> int:
    """Bytes of memory that are free on the device now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _make_pace(lengths: StepSchedule, world: World, run: RunFolder, start: ResumePoint) -> Pace:
    """The pace of commits. Only rank 0 uses its answers."""
    if lengths.commit_every != "auto":
        return EverySteps(lengths.commit_every)
    past = world.from_first(lambda: read_earlier(run, before=start.generation, now_s=time.time()))
    return MeasuredPace(past, start.step, lengths.total_steps)


def _require_shared_storage(world: World, storage: Storage) -> None:
    """Check that every rank can read what rank 0 writes.

    With a path on each host's own disk, training would seem to work but lose all shards except the first host's.
    """
    nonce = world.from_first(lambda: uuid.uuid4().hex)
    name = f"probe-{nonce}"
    world.from_first(lambda: storage.write(name, nonce.encode()))
    hosts = world.gather(socket.gethostname())

    def read() -> None:
        if storage.read_from(name, 0) != nonce.encode():
            raise StoreError(
                f"{storage.url}: {hosts[world.rank]} does not see what {hosts[0]} wrote there. "
                "Set checkpoint.path to storage that every node shares"
            )

    try:
        world.agree(read)
    finally:
        world.from_first(lambda: storage.delete(name))
