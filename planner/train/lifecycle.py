"""The begin and the end of a generation: workers agree, claim it, and resume from the newest commit.

Every worker derives plan, order and total steps by itself, from the job and its world size. Digests are compared
before the first step. On any error, all workers raise the same one.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import nn

from planner.base.host_memory import available_bytes
from planner.base.version import VERSION
from planner.errors import PlannerError, StoreError
from planner.events.event import Event
from planner.events.resuming import SettingChanged
from planner.events.training import AttentionChosen, DataNote, GenerationStopped
from planner.job import HfModel, Job, batch_sizes, data_spec_of
from planner.job.compute import DECIDE_ATTENTION, attention_choices, attention_order
from planner.job.gradient import accumulator_placement, gradient_rule
from planner.job.step_schedule import StepSchedule, conversions, repeated_samples
from planner.keeper.addresses import Keepers
from planner.plan import FIRST_COLLECTIVES_S
from planner.plan.commit_size import COPIES_ON_OWN_NODE, COPIES_ON_TWO_NODES
from planner.plan.lowered_caps import Caps, LoweredCap, lowered_sizes
from planner.provenance.identity import ATTENTION
from planner.store.data_facts import evaluation_in
from planner.store.jobs import job_digest
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.story.earlier import EarlierGenerations, read_earlier
from planner.train import host_room
from planner.train.auto_micro import sizes_that_fit
from planner.train.batches import Loader, MakeBatch
from planner.train.checkpoints import checkpoint
from planner.train.checkpoints.from_memory import load as load_held
from planner.train.checkpoints.from_memory import newest_held
from planner.train.checkpoints.layout import pieces_of
from planner.train.commits import Commits
from planner.train.copies import Copies, Owner, next_node
from planner.train.device_peaks import peak_flops_per_s
from planner.train.exact import determinism
from planner.train.exact.gradient_sums import FixedPointSums, FloatSums, GradientSums
from planner.train.flops import StepFlops
from planner.train.hooks import Hooks
from planner.train.host_room import Room
from planner.train.journal import Journal
from planner.train.keeper_links import KeeperLinks
from planner.train.loop import Loop
from planner.train.memory_copies import MemoryCopies
from planner.train.meter import Meter
from planner.train.models.hf import HfCausal, adapters_of
from planner.train.objectives import Objective
from planner.train.pace import EverySteps, MeasuredPace, Pace
from planner.train.resume import claim
from planner.train.resume_point import Claim, ResumePoint
from planner.train.saves import Saves
from planner.train.setup import Launch, Setup, set_up
from planner.train.shared_storage import require_shared_storage
from planner.train.state import TrainState
from planner.train.world import World, device_kind

WriteNote = Callable[[Event], None]
"""writes an event into the ledger"""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One worker's view of a generation at its start, before there is a model."""

    job: Job
    world: World
    run: RunFolder
    setup: Setup
    claim: Claim
    """what to resume from"""
    hooks: Hooks
    keepers: Keepers | None
    """of the launch. None: nothing is kept in memory"""

    @property
    def is_fresh(self) -> bool:
        """Whether this is a new run, so that the model begins with its first weights."""
        return self.claim.manifest is None

    @property
    def auto_attention(self) -> tuple[str, ...]:
        """What `model.attention: auto` stands for, in the order of the workers' choice."""
        choices = attention_choices(
            self.job,
            on_gpu=self.world.device.type == "cuda",
            is_deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        is_anew = any(_decides_attention(event) for event in self.claim.start.changed)
        return attention_order(choices, None if is_anew else self.attention_before)

    @property
    def reference_attention(self) -> tuple[str, ...]:
        """The same for a reference that is another model: the policy's choice comes first, so that both keep it.

        Attention is known once there is a policy.
        """
        return attention_order(self.auto_attention, self.setup.attention or None)

    @property
    def attention_before(self) -> str | None:
        """What the run computed with until now. Empty if its commit does not say so, None without a commit."""
        manifest = self.claim.manifest
        return None if manifest is None else str(manifest.facts.get(ATTENTION, ""))

    @property
    def computes_otherwise(self) -> bool:
        """Whether a resumed run must check its model again: the job or its attention is another one.

        Attention is known once there is a model.
        """
        return not self.is_fresh and (self.has_other_job or self.setup.attention != self.attention_before)

    @property
    def has_other_job(self) -> bool:
        """Whether the commit that it resumes from is by another job. The run may have begun without `max_tokens`."""
        manifest = self.claim.manifest
        return manifest is not None and manifest.job_digest != job_digest(self.job)


def _decides_attention(event: Event) -> bool:
    """Whether it is a change of a setting that decides `attention_choices`. Of `max_tokens`, only whether it is set."""
    if not isinstance(event, SettingChanged) or event.setting not in DECIDE_ATTENTION:
        return False
    return event.setting != "batch.max_tokens" or "null" in (event.before, event.now)


def begin(launch: Launch, choose_device: Callable[[], torch.device], hooks: Hooks) -> Generation:
    """Join the other workers, compare what each derives by itself, and claim a generation.

    Raises:
        PlannerError: the same error on every worker.
    """
    world = World.join(choose_device, max(FIRST_COLLECTIVES_S, hooks.collectives_s()))
    run = world.agree(lambda: RunFolder(Storage(launch.url)))
    keepers = hooks.keepers() if launch.job.checkpoint.memory != "off" else None
    held = newest_held(world, keepers)
    if held is None:  # otherwise the first commit does it, so that no resize waits for storage
        require_shared_storage(world, run.storage)
    lowered = _lowered(launch.job, world, hooks)
    sizes, fitted = sizes_that_fit(launch.job, world, lowered_sizes(batch_sizes(launch.job), lowered))
    setup = world.agree(lambda: set_up(launch.job, world.world_size, lowered, sizes=sizes, fitted=fitted))
    world.require_equal("the version of planner", VERSION)
    world.require_equal("the data", _data_text(setup))
    world.require_equal("the model's files", setup.model)
    world.require_equal("the plan", setup.plan.digest)
    if launch.job.batch.equality == "bitwise":
        device = f"{determinism.device_text(world.device)}, layout {setup.plan.layout_version}"
        setup = replace(setup, device=device)
        world.require_equal("the device (bitwise results depend on it)", setup.device)
    # Claimed before the model is built, so that a crash loop there is counted too.
    claimed = claim(launch, world, run, setup, held)
    determinism.set_up(launch.job)
    return Generation(job=launch.job, world=world, run=run, setup=setup, claim=claimed, hooks=hooks, keepers=keepers)


def _lowered(job: Job, world: World, hooks: Hooks) -> tuple[LoweredCap, ...]:
    """The lowerings of caps for the kinds of devices of this group. Collective."""
    devices = frozenset(world.gather(device_kind(world.device)))
    caps = world.from_first(hooks.caps)
    return () if caps is None else caps.for_job(Caps.of(batch_sizes(job))).where(devices)


@contextlib.contextmanager
def looping(
    generation: Generation,
    state: TrainState,
    objective_of: Callable[[WriteNote], tuple[Objective, StepFlops]],
    make_batch: MakeBatch,
) -> Iterator[Loop]:
    """Load the commit to resume from into `state`, and give the generation's loop. Closes the journal at the end.

    `objective_of` returns the objective and the FLOPs of its steps. It may take long, and gets a function that writes
    its progress into the ledger.

    Raises:
        PlannerError: the same error on every worker.
    """
    job, world, run, setup = generation.job, generation.world, generation.run, generation.setup
    start = _loaded(generation, state)
    generation.hooks.begin(state.model)
    loader = Loader(
        dataset=setup.dataset,
        order=setup.order,
        plan=setup.plan,
        rank=world.rank,
        make_batch=make_batch,
        has_partners=data_spec_of(job.data).has_partners,
    )
    journal = Journal(job, world, run, setup, start, state, loader)
    if not start.parent or start.changed:  # a resize changes none of these notes
        for event in (*conversions(job, setup.order.num_samples), *_first_events(job, setup, state)):
            journal.note(event)
    if setup.fitted is not None:
        journal.note(setup.fitted)
    if (chosen := _attention_to_tell(generation, state.model)) is not None:
        journal.note(chosen)
    if generation.claim.held is not None:
        journal.note(generation.claim.held.loaded)
    saves = _make_saves(generation, start, state, journal)
    try:
        with determinism.named_refusals():
            objective, flops = objective_of(journal.note)
            yield Loop(
                job=job,
                world=world,
                plan=setup.plan,
                state=state,
                objective=objective,
                loader=loader,
                journal=journal,
                saves=saves,
                hooks=generation.hooks,
                start=start,
                lengths=setup.lengths,
                meter=Meter(world, flops, peak_flops_per_s(world.device, job.train.precision)),
            )
    except PlannerError as error:
        journal.note(GenerationStopped(error=type(error).__name__, reason=str(error)))
        raise
    finally:
        # Saves first: a thread of theirs may still sync the ledger.
        saves.close()
        journal.close()


def _loaded(generation: Generation, state: TrainState) -> ResumePoint:
    """Load what the generation resumes from, and finish its claim.

    Raises:
        PlannerError, MemoryLost: on every worker.
    """
    claimed, world, identity = generation.claim, generation.world, generation.setup.identity
    if claimed.held is not None:
        assert generation.keepers is not None  # the copies were found there
        load_held(world, generation.keepers, claimed.held, state, identity)
    elif claimed.manifest is not None:
        checkpoint.load(world, generation.run.storage, claimed.manifest, state, identity)
    return claimed.finish()


def _make_saves(generation: Generation, start: ResumePoint, state: TrainState, journal: Journal) -> Saves:
    """The commits and the copies of the generation, as many as every host has room for."""
    world, setup = generation.world, generation.setup
    wanted = COPIES_ON_TWO_NODES if generation.keepers is not None else 1
    room = host_room.room(world, state, wanted, generation.keepers)
    for lacking in room.lacking:
        journal.note(lacking)
    memory = _make_memory(generation, start, state, journal, room)
    return Saves(
        world=world,
        commits=_make_commits(generation, start, state, journal, memory, is_copied=room.copies > 0),
        memory=memory,
        pace=_make_pace(setup.lengths, world, generation.run, start),
        hooks=generation.hooks,
        start=start,
        total_steps=setup.lengths.total_steps,
    )


def _make_memory(
    generation: Generation, start: ResumePoint, state: TrainState, journal: Journal, room: Room
) -> MemoryCopies:
    """The copies of the generation: in the keepers' memory, where there are keepers and room."""
    world = generation.world
    keepers = generation.keepers if room.copies >= COPIES_ON_OWN_NODE else None
    own = keepers.node if keepers is not None else ""
    has_replica = bool(own) and room.copies >= COPIES_ON_TWO_NODES
    places = world.gather((own, keepers is not None and keepers.is_on_floor and room.has_floor))
    nodes, floor = [node for node, _ in places], {node for node, is_on_floor in places if is_on_floor}
    links = KeeperLinks(keepers, next_node(nodes, own, floor) if has_replica else "", generation.hooks.keepers)
    copies = Copies(
        device=world.device,
        owner=Owner(run_id=start.run_id, generation=start.generation, rank=world.rank, world_size=world.world_size),
        pieces=lambda: pieces_of(state.tensors()),
        links=links,
        sync=journal.sync if world.rank == 0 else lambda: None,
    )
    return MemoryCopies(
        world=world,
        state=state,
        journal=journal,
        copies=copies,
        keepers=generation.keepers,
        every=generation.job.checkpoint.memory if keepers is not None else "off",
        # A user's own loop may change weights between two updates.
        waits_for_copy=generation.job.is_own,
    )


def _make_commits(
    generation: Generation,
    start: ResumePoint,
    state: TrainState,
    journal: Journal,
    memory: MemoryCopies,
    *,
    is_copied: bool,
) -> Commits:
    """The commits of the generation."""
    world, run = generation.world, generation.run
    is_probed = generation.claim.held is None
    return Commits(
        world=world,
        run=run,
        job=generation.job,
        state=state,
        journal=journal,
        memory=memory,
        committed=f"step {start.durable_step}" if start.durable_step else "none",
        is_copied=is_copied,
        before_first=(lambda: None) if is_probed else (lambda: require_shared_storage(world, run.storage)),
    )


def _data_text(setup: Setup) -> str:
    """What identifies the data of the training, and that of an evaluation on a data set of its own."""
    evaluation = evaluation_in(setup.facts)
    return f"{setup.identity.data} {evaluation.fingerprint}" if evaluation else setup.identity.data


def _first_events(job: Job, setup: Setup, state: TrainState) -> Iterator[Event]:
    """What the ledger says once: rows that were changed or repeat, and the number of layers with adapters."""
    yield from (DataNote(text=note) for note in setup.dataset.notes)
    if repeated := repeated_samples(job, setup.order.num_samples):
        yield repeated
    if isinstance(job.model, HfModel) and job.model.lora is not None:
        yield adapters_of(cast("HfCausal", state.model))


def _attention_to_tell(generation: Generation, model: nn.Module) -> AttentionChosen | None:
    """What `model.attention: auto` became, if there was a choice and the run's commit does not say the same."""
    now, before = generation.setup.attention, generation.attention_before
    if not now or now == before:
        return None
    chosen = cast("HfCausal", model).chosen
    assert chosen is not None  # its name is in the facts
    return replace(chosen, before=before or "")


def make_sums(generation: Generation, model: nn.Module) -> GradientSums:
    """The gradient sums of the job: float32, or fixed point for `bitwise`."""
    world, plan = generation.world, generation.setup.plan
    rule = gradient_rule(generation.job)
    # Of the whole model: `numel` of a DTensor counts the rows of all workers.
    num_parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    where = accumulator_placement(plan, num_parameters, _free_bytes(world), rule.element_bytes)
    if rule.is_fixed_point:
        return FixedPointSums(model, world, plan.most_micro_batches, where)
    return FloatSums(model, where)


def _free_bytes(world: World) -> int:
    """The least memory that any worker's device has free now, for one of the workers that share it. Collective."""
    own, free, device = 0, available_bytes(), ""
    if world.device.type == "cuda":
        free = int(torch.cuda.mem_get_info(world.device)[0])
        # What torch has kept of freed tensors, such as a whole model before it was sharded. Only this worker uses it.
        own = torch.cuda.memory_reserved(world.device) - torch.cuda.memory_allocated(world.device)
        # By its UUID: where CUDA_VISIBLE_DEVICES differs, each worker's own device is number 0.
        device = str(torch.cuda.get_device_properties(world.device).uuid)
    found = world.gather((socket.gethostname(), device, free, own))
    devices = [(host, device) for host, device, *_ in found]
    return min(free // devices.count((host, device)) + own for host, device, free, own in found)


def _make_pace(lengths: StepSchedule, world: World, run: RunFolder, start: ResumePoint) -> Pace:
    """The pace of commits. Only rank 0 uses its answers."""
    if lengths.commit_every != "auto":
        return EverySteps(lengths.commit_every)
    pace = MeasuredPace(EarlierGenerations(), start.step, lengths.total_steps)
    if world.rank == 0:  # in a thread, since no resize waits for storage
        threading.Thread(target=_teach, args=(pace, run, start.generation), name="planner-past", daemon=True).start()
    return pace


def _teach(pace: MeasuredPace, run: RunFolder, generation: int) -> None:
    """Tell the pace what earlier generations have measured."""
    with suppress(StoreError):  # then it goes by what this one measures
        pace.learn(read_earlier(run, before=generation, now_s=time.time()))
