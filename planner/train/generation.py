"""One generation on one worker, from waking up to the outcome: the way into this room.

Here stands what a job of a model and an objective of ours needs. `lifecycle.py` has what every generation needs,
`custom_loop.py` the generations whose training loop is the user's own.
"""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch.distributed.tensor import DTensor

from planner.data.base import SampleDataset
from planner.job import HfModel, Job, OwnModel
from planner.train.batches import MakeBatch, token_batch
from planner.train.custom_loop import train_own
from planner.train.hooks import GenerationEnd, Hooks
from planner.train.lifecycle import Generation, Note, begin, looping, make_sums
from planner.train.models.hf import HfCausal, require_packed
from planner.train.objectives import Objective, check_rows, make_objective
from planner.train.optimize import make_optimizer
from planner.train.reference.cache import CachedReference, StopAsked, TableInputs, parts_of
from planner.train.reference.frozen import Reference, make_reference, make_reference_model
from planner.train.sample_batches import MakeFeedbackBatch, pair_batch, text_batch
from planner.train.setup import Launch
from planner.train.shard import make_model
from planner.train.state import TrainState


def train(launch: Launch, choose_device: Callable[[], torch.device], hooks: Hooks) -> GenerationEnd:
    """Run one generation in the process group that is initialised already. Every worker calls it.

    Raises:
        PlannerError: on every worker, the same one.
    """
    generation = begin(launch, choose_device, hooks)
    if launch.job.is_own:
        return train_own(generation)
    state = make_state(generation)

    def objective(note: Note) -> Objective:
        config, world, setup = launch.job.objective, generation.world, generation.setup
        world.from_first(lambda: check_rows(config, cast("SampleDataset", setup.dataset), setup.order))
        reference = _reference(generation, state, note)
        return world.agree(lambda: make_objective(config, reference))

    try:
        with looping(generation, state, objective, make_batch_of(launch.job)) as loop:
            return loop.run(generation.start.step, generation.start.cursor)
    except StopAsked:
        return GenerationEnd(
            step=generation.start.step, total_steps=generation.setup.lengths.total_steps, repeated_steps=0
        )


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
    if job.reference.source != "cached":
        return make_reference(job, world)
    dataset = cast("SampleDataset", setup.dataset)
    has_first_weights = generation.manifest is None and job.reference.model is None
    computing = TableInputs(
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
        world.agree(partial(require_packed, cast("HfCausal", model)))
    # After a forward pass alone some would be whole, and an optimizer over those would train nothing.
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    optimizer = make_optimizer(job.train.optimizer, model)
    return TrainState.of(model, optimizer, make_sums(generation, model), only_trained=True)
