"""The lengths that a job names, in optimizer steps, and the rate over them: what driver, workers and reports derive.

No files, no torch, no Ray: whoever has not opened the data says so with 0 samples.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from planner.job import Job, OwnOptimizer, Schedule, Train
from planner.job.duration import Duration, RunLength, in_examples, in_steps, is_convertible, parse


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
            number = in_steps(cadence, extent) if is_convertible(cadence, extent) else 0
        if number or not cadence.amount:
            steps = Duration(amount=Fraction(number), unit="steps")
            found.append(f"{name} {cadence} = {steps} ({in_examples(steps, extent.global_batch)})")
        else:
            found.append(f"{name} {cadence}, in steps once the data is open")
    return tuple(found)


def repeated_data_note(job: Job, num_samples: int) -> str:
    """Where a step is larger than an epoch, what that means, in words; else empty.

    Args:
        job: whatever it says.
        num_samples: of one epoch.
    """
    size, steps = job.batch.global_batch, total_steps(job, num_samples)
    if size <= num_samples:
        return ""
    words = f"batch.global {size} is more than the {num_samples} samples of an epoch, so every step has some twice"
    if job.train.epochs is None:
        return words
    wanted = _epochs(job.train.epochs) * num_samples
    more = steps * size / wanted - 1
    return f"{words}, and {steps} steps are {steps * size} samples, {float(more):.0%} more than the epochs say"


def _extent(job: Job, num_samples: int) -> RunLength:
    return RunLength(
        global_batch=job.batch.global_batch, num_samples=num_samples, total_steps=total_steps(job, num_samples)
    )


def _named(job: Job) -> Iterator[tuple[str, Duration]]:
    """What the job says of lengths, as it says it."""
    train = job.train
    if train.examples is not None:
        yield "train", Duration(amount=Fraction(train.examples), unit="examples")
    if train.epochs is not None:
        yield "train", Duration(amount=_epochs(train.epochs), unit="epochs")
    yield "warmup", parse(train.schedule.warmup)
    if job.eval.samples:
        yield "eval every", parse(job.eval.every)
    if job.checkpoint.every != "auto":
        yield "commit every", parse(job.checkpoint.every)


def _epochs(epochs: float) -> Fraction:
    """By its decimal: 0.1 of 1000 samples is 100 of them, and a hair more in binary."""
    return Fraction(repr(epochs))


def learning_rate(train: Train, step: int, lengths: Lengths) -> float:
    """The rate of step `step`, 0 <= step < total steps.

    warmup:    peak * (step + 1) / warmup_steps
    then, with p from 0 at the first step after it to 1 at the last, and f = final_fraction:
    constant:  peak
    linear:    peak * (1 - (1 - f) * p)
    cosine:    peak * (f + (1 - f) * (1 + cos(pi * p)) / 2)     (Loshchilov & Hutter 2017, one cycle)
    """
    assert not isinstance(train.optimizer, OwnOptimizer)  # whose rates are not ours
    schedule, peak, warmup_steps = train.schedule, train.optimizer.lr, lengths.warmup_steps
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return peak * _shape(schedule, (step - warmup_steps) / max(lengths.total_steps - 1 - warmup_steps, 1))


def _shape(schedule: Schedule, progress: float) -> float:
    final = schedule.final_fraction
    if schedule.kind == "linear":
        return 1 - (1 - final) * progress
    if schedule.kind == "cosine":
        return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2
    return 1.0


def schedule_change_note(before: Job, now: Job, num_samples: int, step: int, planned_steps: int) -> str:
    """What another number of steps does to the learning rate of a run that goes on at `step`, in words; empty: nothing.

    Args:
        before: the job that the run was made with.
        now: the job that it is to go on with.
        num_samples: of one epoch.
        step: the next one.
        planned_steps: the run's own number so far.
    """
    if before.train.schedule != now.train.schedule or before.train.optimizer != now.train.optimizer or now.is_own:
        return ""
    length = lengths(now, num_samples)
    warmup = in_steps(
        parse(before.train.schedule.warmup),
        RunLength(global_batch=now.batch.global_batch, num_samples=num_samples, total_steps=planned_steps),
    )
    old = learning_rate(
        before.train, min(step, planned_steps - 1), replace(length, total_steps=planned_steps, warmup_steps=warmup)
    )
    new = learning_rate(now.train, min(step, length.total_steps - 1), length)
    if length.total_steps == planned_steps or old == new:
        return ""
    return (
        f"train.schedule: {now.train.schedule.kind}, it ends at step {length.total_steps} instead of {planned_steps}, "
        f"so the rate at step {step} goes from {old:.3g} to {new:.3g}"
    )
