"""A job's durations in optimizer steps, and its learning rate. Driver, workers and reports all derive them here.

Pure functions of the job and `num_samples`, the samples of an epoch, which is 0 until the data has been opened.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from planner.events.training import DurationConverted, SamplesRepeat
from planner.job import Job, OwnOptimizer, Schedule, Train
from planner.job.duration import Duration, RunLength, in_steps, is_convertible, parse

if TYPE_CHECKING:
    from planner.events.resuming import ScheduleMoved


@dataclass(frozen=True, kw_only=True)
class StepSchedule:
    """The durations of a job in optimizer steps."""

    total_steps: int
    warmup_steps: int
    eval_every: int
    commit_every: Literal["auto"] | int


def total_steps(job: Job, num_samples: int = 0) -> int:
    """Optimizer steps of the job, rounded up: the last step is a whole one and may run into the next epoch.

    Args:
        job: the job whose `train` section has the length.
        num_samples: samples of one epoch. With 0, a length in epochs is 0 steps, as only the data can tell.
    """
    train, size = job.train, job.batch.global_batch
    if train.steps is not None:
        return train.steps
    if train.examples is not None:
        return math.ceil(Fraction(train.examples, size))
    assert train.epochs is not None  # the job was validated when it was made
    return math.ceil(_epochs(train.epochs) * num_samples / size)


def lengths(job: Job, num_samples: int) -> StepSchedule:
    """All durations of a job, in steps, for data with `num_samples` samples in an epoch."""
    run = _run_length(job, num_samples)
    every = job.checkpoint.every
    return StepSchedule(
        total_steps=run.total_steps,
        warmup_steps=in_steps(parse(job.train.schedule.warmup), run),
        eval_every=in_steps(parse(job.eval.every), run),
        commit_every="auto" if every == "auto" else in_steps(parse(every), run),
    )


def conversions(job: Job, num_samples: int = 0) -> tuple[DurationConverted, ...]:
    """One for each duration that is not in steps, such as `warmup 10%`.

    Args:
        job: any job.
        num_samples: samples of one epoch. With 0, durations that need the data have no steps.
    """
    run = _run_length(job, num_samples)
    found = []
    for name, length in _named(job):
        if length.unit == "steps":
            continue
        if name == "train":
            number = run.total_steps  # which is rounded up
        elif is_convertible(length, run):
            number = in_steps(length, run)
        else:
            number = 0
        steps = number if number or not length.amount else None
        examples = None if steps is None else steps * run.global_batch
        found.append(DurationConverted(duration=name, given=str(length), steps=steps, examples=examples))
    return tuple(found)


def repeated_samples(job: Job, num_samples: int) -> SamplesRepeat | None:
    """Which samples repeat within a step, if it is larger than an epoch. Else None.

    Args:
        job: any job.
        num_samples: samples of one epoch.
    """
    size, steps = job.batch.global_batch, total_steps(job, num_samples)
    if size <= num_samples:
        return None
    epochs = job.train.epochs
    more = None if epochs is None else float(steps * size / (_epochs(epochs) * num_samples) - 1)
    return SamplesRepeat(global_batch=size, num_samples=num_samples, steps=steps, more=more)


def _run_length(job: Job, num_samples: int) -> RunLength:
    return RunLength(
        global_batch=job.batch.global_batch, num_samples=num_samples, total_steps=total_steps(job, num_samples)
    )


def _named(job: Job) -> Iterator[tuple[str, Duration]]:
    """The durations that the job file can set, by name, in the job's own units."""
    train = job.train
    if train.examples is not None:
        yield "train", Duration(amount=Fraction(train.examples), unit="examples")
    if train.epochs is not None:
        yield "train", Duration(amount=_epochs(train.epochs), unit="epochs")
    yield "warmup", parse(train.schedule.warmup)
    if job.eval.is_on:
        yield "eval every", parse(job.eval.every)
    if job.checkpoint.every != "auto":
        yield "commit every", parse(job.checkpoint.every)


def _epochs(epochs: float) -> Fraction:
    """The exact decimal: 0.1 of 1000 samples is 100, but slightly more if 0.1 is taken as a binary float."""
    return Fraction(repr(epochs))


def learning_rate(train: Train, step: int, lengths: StepSchedule) -> float:
    """The learning rate of step `step`, 0 <= step < total steps.

    warmup:    peak * (step + 1) / warmup_steps
    then, with p from 0 at the first step after it to 1 at the last, and f = final_fraction:
    constant:  peak
    linear:    peak * (1 - (1 - f) * p)
    cosine:    peak * (f + (1 - f) * (1 + cos(pi * p)) / 2)     (Loshchilov & Hutter 2017, one cycle)
    """
    assert not isinstance(train.optimizer, OwnOptimizer)  # the user's loop sets its own rates
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


def moved_schedule(before: Job, now: Job, num_samples: int, step: int, planned_steps: int) -> "ScheduleMoved | None":
    """What another number of steps does to the learning rate of the next step. None if a resume changes nothing.

    Args:
        before: the job that the run was made with.
        now: the job of the resume.
        num_samples: samples of one epoch.
        step: the next step.
        planned_steps: the total steps of the run before the resume.
    """
    if before.train.schedule != now.train.schedule or before.train.optimizer != now.train.optimizer or now.is_own:
        return None
    length = lengths(now, num_samples)
    warmup = in_steps(
        parse(before.train.schedule.warmup),
        RunLength(global_batch=now.batch.global_batch, num_samples=num_samples, total_steps=planned_steps),
    )
    old = learning_rate(
        before.train,
        max(min(step, planned_steps - 1), 0),
        replace(length, total_steps=planned_steps, warmup_steps=warmup),
    )
    new = learning_rate(now.train, min(step, length.total_steps - 1), length)
    if length.total_steps == planned_steps or old == new:
        return None
    from planner.events.resuming import ScheduleMoved  # only a resume needs the kinds of that module

    return ScheduleMoved(
        schedule=now.train.schedule.kind,
        end_step=length.total_steps,
        old_end_step=planned_steps,
        step=step,
        lr=new,
        old_lr=old,
    )
