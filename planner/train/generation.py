"""One generation on one worker, from start to end. `train` is the entry point of this room.

This file is for jobs with a model and an objective of planner. `lifecycle.py` has what every generation needs, and
`custom_loop.py` runs the user's own training loops.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from planner.data.base import SampleDataset
from planner.errors import UserError
from planner.job import HfModel, Job, OwnModel, batch_sizes, data_spec_of
from planner.job.compute import packing_setting
from planner.job.data_registry import DATA_KINDS
from planner.train.batches import MakeBatch
from planner.train.custom_loop import train_own
from planner.train.earlier_weights import EarlierWeights
from planner.train.flops import StepFlops, step_flops
from planner.train.hooks import GenerationEnd, Hooks
from planner.train.lifecycle import Generation, WriteNote, begin, looping, make_sums
from planner.train.models.hf import HfCausal, require_packed
from planner.train.objectives import Objective, check_rows, make_objective
from planner.train.optimize import make_optimizer
from planner.train.out_of_memory import Computing, out_of_memory
from planner.train.reference.cache import (
    ROWS_OF_AUTO,
    CachedReference,
    StopRequested,
    TableBuilder,
    TokenLimit,
    parts_of,
)
from planner.train.reference.frozen import FrozenReference, Reference, make_reference, make_reference_model
from planner.train.setup import Launch
from planner.train.shard import make_model
from planner.train.state import TrainState
from planner.train.world import World


def train(launch: Launch, choose_device: Callable[[], torch.device], hooks: Hooks) -> GenerationEnd:
    """Run one generation in the default process group, which must be initialised. Every worker calls it.

    Raises:
        PlannerError: the same error on every worker.
        OutOfMemory: this worker has no memory left, perhaps alone.
    """
    generation, computing = begin(launch, choose_device, hooks), Computing()
    try:
        return _train(generation, computing)
    except Exception as error:
        lacking = out_of_memory(error, generation, computing)
        if lacking is None:
            raise
    raise lacking  # not in the handler: then it would keep the traceback, and that the tensors of the step


def _train(generation: Generation, computing: Computing) -> GenerationEnd:
    job = generation.job
    if job.is_own:
        return train_own(generation, computing)
    make_batch = generation.world.agree(lambda: make_batch_of(job))
    state = make_state(generation)
    generation = _with_attention(generation, state.model)

    def objective(note: WriteNote) -> tuple[Objective, StepFlops]:
        config, world, setup = job.objective, generation.world, generation.setup
        if generation.computes_otherwise:  # its weights are there only now
            _require_packed(job, world, state.model)
        # One worker looks: the digests of the data were compared, so the others have the same rows.
        world.from_first(lambda: check_rows(config, setup.dataset, setup.order))
        reference = _reference(generation, state, note)
        assert not isinstance(job.model, OwnModel)  # it has a loop of its own
        flops = step_flops(state.model, job.model.context, reference)
        return world.agree(lambda: make_objective(config, reference)), flops

    try:
        with looping(generation, state, objective, make_batch) as loop:
            computing.loop = loop
            return loop.run()
    except StopRequested:  # before its first step
        start = generation.claim.start
        return GenerationEnd(
            step=start.step,
            total_steps=generation.setup.lengths.total_steps,
            repeated_steps=0,
            is_held=start.is_held,
        )


def _with_attention(generation: Generation, model: nn.Module) -> Generation:
    """The generation, whose facts say what `model.attention: auto` became if there is a choice, or was one before."""
    chosen = model.chosen if isinstance(model, HfCausal) else None
    if chosen is None or (len(generation.auto_attention) == 1 and not generation.attention_before):
        return generation
    return replace(generation, setup=replace(generation.setup, attention=chosen.attention))


def make_batch_of(job: Job) -> MakeBatch:
    """The function that makes micro-batches from rows of the job's data.

    Raises:
        DataKindUnavailable: the package that has the kind of data fails.
        UserError: it cannot make the micro-batches that the job wants.
    """
    spec = data_spec_of(job.data)
    assert spec.make_batch is not None  # a user's own loop makes batches itself
    make_batch: MakeBatch = DATA_KINDS.named(spec.kind, spec.make_batch)
    if job.batch.max_tokens is not None and "is_packed" not in inspect.signature(make_batch).parameters:
        raise UserError(
            f"batch.max_tokens: {spec.make_batch} of data.kind {spec.kind} takes no is_packed, so it cannot make "
            "micro-batches without padding. Remove batch.max_tokens"
        )
    return make_batch


def _reference(generation: Generation, state: TrainState, note: WriteNote) -> Reference:
    """The reference of the job: a frozen model, or a table in the run's folder, whose missing parts are computed.

    Raises:
        StopRequested: on every worker, if one is asked to stop before the table is complete.
        PlannerError: the same error on every worker.
    """
    job, world, setup, start = generation.job, generation.world, generation.setup, generation.claim.start
    if job.reference.source != "cached":
        reference = make_reference(job, setup.folders, world, generation.reference_attention)
        if isinstance(reference, FrozenReference):
            _check_reference(generation, reference.model)
        return reference
    dataset = setup.dataset
    has_first_weights = generation.is_fresh and job.reference.model is None

    def reference_model() -> nn.Module:
        model = make_reference_model(job, setup.folders, world, generation.reference_attention)
        _check_reference(generation, model)
        return model

    computing = TableBuilder(
        world=world,
        parts=parts_of(
            job,
            f"{setup.identity.model} {setup.model}",
            dataset,
            generation.run.storage,
            limit=_token_limit(job, dataset),
        ),
        dataset=dataset,
        # Before its first step, the policy is its own reference.
        make_model=lambda: state.model if has_first_weights else reference_model(),
        note=note,
        should_stop=lambda: generation.hooks.should_stop(start.step),
    )
    return CachedReference(computing.table())


def _token_limit(job: Job, dataset: SampleDataset) -> TokenLimit | None:
    """The limit of a reference's packed chunks. None: they are padded."""
    most = job.batch.max_tokens
    if most is None:
        return None
    row_tokens = dataset.lengths(range(dataset.num_rows)).tokens
    # Not what fits a group: chunks decide the bits of the table.
    limit = ROWS_OF_AUTO * int(row_tokens.max()) if most == "auto" else most
    return TokenLimit(row_tokens=row_tokens, max_tokens=limit)


def _require_packed(job: Job, world: World, model: nn.Module) -> None:
    """Check that a model of transformers keeps apart what the job packs. All workers call it.

    Raises:
        UserError: on every worker, if it does not.
    """
    if isinstance(model, HfCausal) and (setting := packing_setting(job)):
        any_worker = partial(_any_worker, world)
        world.agree(partial(require_packed, model, setting, row_tokens=_most_row_tokens(job), any_worker=any_worker))


def _most_row_tokens(job: Job) -> int:
    """The most tokens of a row that `batch.max_tokens` makes. 0 without it: other rows are no longer than a sample.

    With `auto`, of any group: a model is not checked again when a later one has a higher cap.
    """
    assert not isinstance(job.model, OwnModel)  # it has a loop of its own
    most = batch_sizes(job).max_tokens
    if most is None:
        return 0
    if not data_spec_of(job.data).has_partners:
        return most
    # The completions of partners count in other micro-batches.
    return min(job.batch.most_micro, job.batch.global_batch) * job.model.context


def _any_worker(world: World, value: bool) -> bool:
    """Whether a value is true on any worker. All workers call it."""
    return any(world.gather(value))


def _check_reference(generation: Generation, model: nn.Module) -> None:
    """Check a reference that is another model, whenever the policy is checked. The policy's own kind was checked."""
    if (generation.is_fresh or generation.computes_otherwise) and generation.setup.folders.reference:
        _require_packed(generation.job, generation.world, model)


def _earlier_weights(generation: Generation) -> EarlierWeights | None:
    """The earlier run's weights, if the job has `after` and this generation's model needs them. All workers call it.

    Raises:
        PlannerError: on every worker, if they are not there, or are another model's.
    """
    job = generation.job
    has_adapters = isinstance(job.model, HfModel) and job.model.lora is not None
    if not generation.is_fresh and not has_adapters:
        return None  # the run's own commit has all weights
    what = "the first weights" if generation.is_fresh else "the weights below the adapters"
    return EarlierWeights.of(job, generation.setup.folders.model, generation.world, what)


def make_state(generation: Generation) -> TrainState:
    """The sharded model of the job, its optimizer, and the sums of its gradients.

    Raises:
        UserError: on every worker, if the model cannot be made or cannot use the data.
    """
    job, world = generation.job, generation.world
    is_fresh, earlier = generation.is_fresh, _earlier_weights(generation)
    config = generation.setup.folders.model or job.model
    model = make_model(
        config,
        job.train,
        world,
        first_weights=is_fresh,
        earlier=earlier,
        auto_attention=generation.auto_attention,
    )
    # A run that resumes has no weights before its commit is loaded (`train` checks them if need be).
    if is_fresh:
        _require_packed(job, world, model)
    # A forward pass without backward leaves some parameters unsharded, and an optimizer over those would train nothing.
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    optimizer = make_optimizer(job.train.optimizer, model, is_bitwise=job.batch.equality == "bitwise")
    return TrainState.of(model, optimizer, make_sums(generation, model), only_trained=True)
