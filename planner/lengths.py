"""The lengths that a job names, in optimizer steps: what driver, workers and reports derive alike.

No files, no torch, no Ray: whoever has not opened the data says so with 0 samples.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from planner.cadence import Cadence, Extent, in_examples, in_steps, is_known, parse
from planner.job import Job


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """In optimizer steps."""

    total_steps: int
    warmup_steps: int
    eval_every: int
    commit_every: Literal["auto"] | int


def total_steps(job: Job, num_samples: int = 0) -> int:
    """Optimizer steps of the job; its last step runs on, into the next epoch say, rather than be short.

    Args:
        job: whose `train` says how long.
        num_samples: of one epoch; 0 if the data has not been opened. Then 0 steps: it takes the data to know.
    """
    train, size = job.train, job.batch.global_batch
    if train.steps is not None:
        return train.steps
    if train.examples is not None:
        return math.ceil(Fraction(train.examples, size))
    assert train.epochs is not None  # the job was checked at birth
    return math.ceil(_epochs(train.epochs) * num_samples / size)


def lengths(job: Job, num_samples: int) -> Lengths:
    """All of them, of a job whose data has `num_samples` samples in an epoch."""
    extent = _extent(job, num_samples)
    every = job.checkpoint.every
    return Lengths(
        total_steps=extent.total_steps,
        warmup_steps=in_steps(parse(job.train.schedule.warmup), extent),
        eval_every=in_steps(parse(job.eval.every), extent),
        commit_every="auto" if every == "auto" else in_steps(parse(every), extent),
    )


def conversions(job: Job, num_samples: int = 0) -> tuple[str, ...]:
    """What was not written in steps, in steps: `eval every 0.5 epochs = 312 steps (19968 examples)`.

    Args:
        job: whatever it says.
        num_samples: of one epoch; 0 if the data has not been opened. Then what cannot be known yet says so.
    """
    extent = _extent(job, num_samples)
    found = []
    for name, cadence in _named(job):
        if cadence.unit == "steps":
            continue
        if name == "train":
            number = extent.total_steps  # which is never rounded down
        else:
            number = in_steps(cadence, extent) if is_known(cadence, extent) else 0
        if number or not cadence.amount:
            steps = Cadence(amount=Fraction(number), unit="steps")
            found.append(f"{name} {cadence} = {steps} ({in_examples(steps, extent.global_batch)})")
        else:
            found.append(f"{name} {cadence}, in steps once the data is open")
    return tuple(found)


def _extent(job: Job, num_samples: int) -> Extent:
    return Extent(
        global_batch=job.batch.global_batch, num_samples=num_samples, total_steps=total_steps(job, num_samples)
    )


def _named(job: Job) -> Iterator[tuple[str, Cadence]]:
    """What the job says of lengths, as it says it."""
    train = job.train
    if train.examples is not None:
        yield "train", Cadence(amount=Fraction(train.examples), unit="examples")
    if train.epochs is not None:
        yield "train", Cadence(amount=_epochs(train.epochs), unit="epochs")
    yield "warmup", parse(train.schedule.warmup)
    if job.eval.samples:
        yield "eval every", parse(job.eval.every)
    if job.checkpoint.every != "auto":
        yield "commit every", parse(job.checkpoint.every)


def _epochs(epochs: float) -> Fraction:
    """By its decimal: 0.1 of 1000 samples is 100 of them, and a hair more in binary."""
    return Fraction(repr(epochs))
