"""A job's lengths, in steps."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import JobError
from planner.events.resuming import ScheduleMoved
from planner.events.training import SamplesRepeat
from planner.files import parse_job
from planner.job.step_schedule import (
    StepSchedule,
    conversions,
    learning_rate,
    lengths,
    moved_schedule,
    repeated_samples,
    total_steps,
)
from planner.store.run_folder import job_digest
from planner.wording.event_text import text_of


def job(*settings):
    """A job with 64 samples per step, with `key=value` settings."""
    text = """
name: tiny
model: {kind: gpt, layers: 1, width: 8, heads: 2, context: 8}
data: {kind: text, path: x}
batch: {global: 64, max_micro: 8}
train: {steps: 1000, optimizer: {kind: adamw, lr: 1e-3}}
eval: {samples: 8}
"""
    return parse_job(text, overrides=settings)


EPOCHS = ("train.steps=null", "train.epochs=3")


def sentences(*given):
    """What is told of a job's durations."""
    return tuple(map(text_of, conversions(*given)))


def test_every_length_is_resolved():
    """By samples in an epoch, by samples in a step, by steps in the run."""
    spec = job(*EPOCHS, "train.schedule.warmup=10%", "eval.every=0.5 epochs", "checkpoint.every=6400 examples")
    assert lengths(spec, 40_000) == StepSchedule(total_steps=1875, warmup_steps=188, eval_every=313, commit_every=100)
    assert sentences(spec, 40_000) == (
        "train 3 epochs = 1875 steps (120000 examples)",
        "warmup 10% = 188 steps (12032 examples)",
        "eval every 0.5 epochs = 313 steps (20032 examples)",
        "commit every 6400 examples = 100 steps (6400 examples)",
    )


def test_without_the_data_what_can_be_known_is():
    """The lines of the others say that they need the data."""
    spec = job(*EPOCHS, "train.schedule.warmup=10%", "eval.every=20000 examples rounded")
    assert sentences(spec) == (
        "train 3 epochs, in steps once the data is open",
        "warmup 10%, in steps once the data is open",
        "eval every 20000 examples rounded = 313 steps (20032 examples)",
    )
    assert sentences(job("train.schedule.warmup=10%")) == ("warmup 10% = 100 steps (6400 examples)",)


def test_steps_need_no_conversion():
    """Nor does an evaluation that is never done."""
    assert sentences(job("eval.every=7", "checkpoint.every=1 step")) == ()
    assert sentences(job("eval.every=10%", "eval.samples=0")) == ()
    assert lengths(job(), 99) == StepSchedule(total_steps=1000, warmup_steps=0, eval_every=100, commit_every="auto")
    assert sentences(job("train.schedule.warmup=0%")) == ("warmup 0% = 0 steps (0 examples)",)


@given(samples=st.integers(1, 10**9), examples=st.integers(1, 10**12), epochs=st.integers(1, 10**6))
def test_a_run_ends_with_the_step_that_reaches_its_end(samples, examples, epochs):
    """Not a step earlier or later. Fractions of an epoch are decimal."""
    steps = total_steps(job("train.steps=null", f"train.examples={examples}"), samples)
    assert (steps - 1) * 64 < examples <= steps * 64
    part = Fraction(epochs, 1000)
    steps = total_steps(job("train.steps=null", f"train.epochs={epochs / 1000}"), samples)
    assert steps == math.ceil(part * samples / 64)


def test_a_tenth_of_an_epoch_is_a_tenth():
    """As a binary float, 0.1 is slightly more and would be a step more."""
    assert total_steps(job("train.steps=null", "train.epochs=0.1"), 6400) == 10


@pytest.mark.parametrize("key", ["train.schedule.warmup", "eval.every", "checkpoint.every"])
def test_examples_that_are_no_whole_steps_are_refused(key):
    """When the job is made. The values that the error suggests are accepted."""
    with pytest.raises(JobError) as error:
        job(f"{key}=100 examples")
    assert str(error.value) == (
        f"job: {key}: 100 examples is not a multiple of batch.global 64. Write 64 examples (1 step) "
        "or 128 examples (2 steps), or 100 examples rounded"
    )
    for fixed in ("64 examples", "128 examples", "100 examples rounded", "100 steps", "100 epochs", "100%"):
        job(f"{key}={fixed}")


def test_every_wrong_length_is_named_at_once():
    """In one line."""
    with pytest.raises(JobError, match=r"eval\.every: 9 examples .* Write 64 .*\. checkpoint\.every: 1 example is not"):
        job("eval.every=9 examples", "checkpoint.every=1 example")


def test_equal_jobs_have_equal_digests():
    """For every way to write a duration. Another unit makes another job."""
    same = [job(f"eval.every={text}") for text in ("100", "100 steps", "'100 step'")]
    assert {job_digest(each) for each in same} == {job_digest(job())}
    assert job_digest(job("eval.every=6400 examples")) != job_digest(job())
    assert job_digest(job(*EPOCHS)) == job_digest(job("train.steps=null", "train.epochs=3.0"))


COSINE = ("train.schedule={kind: cosine, warmup: 10%, final_fraction: 0.1}",)


def test_another_end_of_a_schedule_is_told_with_its_rates():
    """Of more steps and of fewer steps. Nothing where the rate does not change."""
    before, now = job(*COSINE, "train.steps=160"), job(*COSINE, "train.steps=400")
    told = moved_schedule(before, now, 6400, 160, 160)
    peak = now.train.optimizer.lr
    new = learning_rate(now.train, 160, lengths(now, 6400))
    assert 0.7 * peak < new < peak
    assert told == ScheduleMoved(
        schedule="cosine", end_step=400, old_end_step=160, step=160, lr=new, old_lr=pytest.approx(peak / 10)
    )
    assert moved_schedule(now, before, 6400, 20, 400).end_step == 160
    assert moved_schedule(before, before, 6400, 20, 160) is None
    constant = [job("train.schedule={kind: constant}", f"train.steps={steps}") for steps in (160, 400)]
    assert moved_schedule(*constant, 6400, 20, 160) is None
    other = job("train.schedule={kind: linear}", "train.steps=400")
    assert moved_schedule(before, other, 6400, 20, 160) is None  # --accept recipe reports it


def test_a_step_larger_than_an_epoch_is_told():
    """With a length in epochs, the event says how many more samples are used."""
    assert repeated_samples(job("train.steps=9"), 35) == SamplesRepeat(
        global_batch=64, num_samples=35, steps=9, more=None
    )
    repeated = repeated_samples(job("train.steps=null", "train.epochs=3"), 35)
    assert (repeated.steps, repeated.more) == (2, pytest.approx(128 / 105 - 1))
    assert repeated_samples(job("train.steps=9"), 64) is None


def test_a_run_that_planned_no_step_has_a_rate():
    """A forged manifest may say so. The rate before is then that of the first step."""
    before, now = (job("train.schedule={kind: linear}", f"train.steps={steps}") for steps in (160, 400))
    told = moved_schedule(before, now, 6400, 5, 0)
    peak, new = before.train.optimizer.lr, learning_rate(now.train, 5, lengths(now, 6400))
    assert (told.end_step, told.old_end_step, told.old_lr, told.lr) == (400, 0, peak, new)
