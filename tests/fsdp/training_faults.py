"""Faults planted in training: how, and what each verifier must find in the run that comes of it.

The run has one generation of two workers and two steps of seven samples, and trains on without complaint.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from unittest import mock

from forging import Unseen

Plant = Callable[[int], AbstractContextManager]
"""rank -> a context in which training has the fault. It is entered in each worker process"""

COMPUTED = Unseen("samples are derived, and what was computed of them is taken on trust: only training again shows it")


@dataclass(frozen=True, kw_only=True)
class TrainingFault:
    """How a fault is planted, and what each verifier must find."""

    plant: Plant
    verify: Mapping[str, str]
    """each check that fails -> a text in its detail. A run with the fault is compared with one without it"""
    audit: str | Unseen
    verify_run: str | Unseen
    counts: tuple[int, int] = field(default=(0, 0))
    """lost and repeated samples by the audit"""
    mismatched: int = 2
    """steps that used other samples, by the audit"""


def loads(change):
    """`change(load, loader, cursor)` is what each load of a step's micro-batches returns."""

    def plant(_rank):
        from planner.train.batches import LoadedStep, Loader

        load_step = Loader.load

        def load(loader, cursor):
            return load_step(loader, cursor).batches

        return mock.patch.object(
            Loader, "load", lambda loader, cursor: LoadedStep(batches=change(load, loader, cursor))
        )

    return plant


def each_batch(change):
    """Each micro-batch with samples is changed."""
    return loads(
        lambda load, loader, cursor: [change(batch) if batch.rows else batch for batch in load(loader, cursor)]
    )


def next_sample_at_step_1(load, loader, cursor):
    """Step 1 begins one sample late."""
    return load(loader, cursor + (cursor == 7))


def share_of_rank_0(load, loader, cursor):
    """Every worker computes the share of rank 0."""
    return load(replace(loader, rank=0), cursor)


def without_the_last_round(load, loader, cursor):
    """FSDP needs the round on every worker, so it becomes a ghost."""
    from planner.train.sample_batches import batch_of

    return [*load(loader, cursor)[:-1], batch_of((), ())]


def first_row_twice(batch):
    """The first row stands in the place of the last."""
    sequences = batch.sequences
    inputs, labels, lengths = sequences.inputs.clone(), sequences.labels.clone(), sequences.lengths
    inputs[-1], labels[-1] = inputs[0], labels[0]
    twice = replace(sequences, inputs=inputs, labels=labels, lengths=(*lengths[:-1], lengths[0]))
    return replace(batch, rows=(*batch.rows[:-1], batch.rows[0]), sequences=twice)


def other_token(batch):
    """One token of one row is another one. The row's number is right."""
    inputs = batch.sequences.inputs.clone()
    inputs[0, 1] ^= 1
    return replace(batch, sequences=replace(batch.sequences, inputs=inputs))


def other_label(batch):
    """One target is another one. Every input is right."""
    labels = batch.sequences.labels.clone()
    labels[0, 0] ^= 1
    return replace(batch, sequences=replace(batch.sequences, labels=labels))


def skip_the_last_round(_rank):
    """The loop leaves out the last round of every step, on every worker."""
    from planner.train import loop

    accumulate = loop.accumulate

    def short(model, objective, step):
        step.batches = step.batches[:-1]
        accumulate(model, objective, step)

    return mock.patch.object(loop, "accumulate", short)


def dropout_by_rank(rank):
    """Dropout depends on the worker and not on the sample."""
    from planner.train import optimizer_step

    seed = optimizer_step.seed_randomness
    return mock.patch.object(optimizer_step, "seed_randomness", lambda base, position: seed(base + rank, position))


def one_ulp_at_step_1(rank):
    """One element of a gradient differs by one unit in the last place, on the worker that has it."""
    import torch

    from planner.train import optimize

    clip, calls = optimize.clip_gradients, []

    def nudge(model, norm, clip_norm):
        clip(model, norm, clip_norm)
        calls.append(None)
        if len(calls) == 2 and rank == 0:
            local = model.get_parameter("head.weight").grad.to_local()
            local[0, 0] = torch.nextafter(local[0, 0], torch.tensor(torch.inf))

    return mock.patch.object(optimize, "clip_gradients", nudge)


def train_with(fault, rank, launch, end_step):
    """A `Worker` of `planner.rehearsal` whose training has a fault of the table."""
    from planner.rehearsal.on_processes import train_observed

    with FAULTS[fault].plant(rank):
        return train_observed(rank, launch, end_step)


_STEP_0 = "step 0: what entered the forward pass is not the samples at [0, 7)"
_STEP_1 = "step 1: what entered the forward pass is not the samples at [7, 14)"
_SAMPLES = {"samples": "differ first at step 0"}

FAULTS = {
    "another sample at step 1": TrainingFault(
        plant=loads(next_sample_at_step_1),
        verify={"samples": "differ first at step 1"},
        audit=_STEP_1,
        verify_run=_STEP_1,
        mismatched=1,
    ),
    "a sample twice": TrainingFault(
        plant=each_batch(first_row_twice), verify=_SAMPLES, audit=_STEP_0, verify_run=_STEP_0
    ),
    "another token": TrainingFault(plant=each_batch(other_token), verify=_SAMPLES, audit=_STEP_0, verify_run=_STEP_0),
    "another label": TrainingFault(plant=each_batch(other_label), verify=_SAMPLES, audit=_STEP_0, verify_run=_STEP_0),
    "a round of ghosts": TrainingFault(
        plant=loads(without_the_last_round),
        verify=_SAMPLES,
        audit="step 0: computed 4 samples instead of 7",
        verify_run="step 0: computed 4 samples instead of 7",
        counts=(6, 0),
    ),
    "a worker's share twice": TrainingFault(
        plant=loads(share_of_rank_0),
        verify=_SAMPLES,
        audit="step 0: computed 8 samples instead of 7",
        verify_run="step 0: computed 8 samples instead of 7",
        counts=(0, 2),
    ),
    "a round skipped": TrainingFault(
        plant=skip_the_last_round,
        verify={**_SAMPLES, "forward passes": "step 0, worker 0: 2, planned 4"},
        audit=_STEP_0,
        verify_run=_STEP_0,
    ),
    "dropout by rank": TrainingFault(
        plant=dropout_by_rank,
        verify={"tensors by step": "differ first at step 0, in gradient/"},
        audit=COMPUTED,
        verify_run=COMPUTED,
    ),
    "one unit in the last place": TrainingFault(
        plant=one_ulp_at_step_1,
        verify={"tensors by step": "differ first at step 1, in gradient/head.weight"},
        audit=COMPUTED,
        verify_run=COMPUTED,
    ),
}
