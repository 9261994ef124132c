"""Fits the step model to what a run has measured."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.errors import StoreError
from planner.job import HfModel, Job
from planner.job.gradient import gradient_rule
from planner.job.step_settings import place_settings, step_settings
from planner.plan.commit_size import FLOAT32_BYTES, NotKnown
from planner.plan.rates import Rates, measured_sizes
from planner.plan.step_time import Term, Traffic, fit
from planner.runner.commit_size import commit_size
from planner.store.follow import WholeLedger
from planner.store.run_folder import RunFolder, no_run_error
from planner.store.storage import Storage
from planner.store.survey import is_run
from planner.story.step_times import StepTimes, StepTimesFold

_BFLOAT16_BYTES = 2
# 31 years. A ledger with a longer step is wrong, and squares of such times are beyond all numbers.
_MOST_S = 1e9


@dataclass(frozen=True, kw_only=True)
class FittedRun:
    """The rates of a run, and what they were fitted to."""

    rates: Rates
    times: StepTimes


def fit_run(url: str, progress: Callable[[int, int], None] = lambda _done, _of: None) -> FittedRun:
    """Read a run's ledger, and fit the step model to its typical steps.

    Args:
        url: the run's folder or URL.
        progress: called with `(done, of)` after each generation.

    Raises:
        NewerFormat: another version of planner wrote it.
        StoreError: there is no run, its job is gone, it has no typical step yet, or its times are impossible.
    """
    if not is_run(Storage(url)):
        raise no_run_error(url)
    run = RunFolder(Storage(url))
    times = _times(run, progress)
    if times is None or not times.times:
        raise StoreError(
            f"{url}: no typical step is on record (the first step of each generation does not count). "
            "Let it train for some steps first"
        )
    _require_possible(url, times)
    job = run.job_if_known(times.header.job_digest)
    if job is None:
        raise StoreError(f"{url}: the job that it was made with is gone (jobs/{times.header.job_digest}.json)")
    return FittedRun(rates=_rates(url, job, times), times=times)


def _require_possible(url: str, times: StepTimes) -> None:
    """Refuse times that no clock can have measured.

    Raises:
        StoreError: a time is negative, above 31 years, or no number. A typical step takes more than 0 s.
    """
    found = [
        (f"a typical step at world size {each.world_size}", each.seconds, each.seconds > 0) for each in times.times
    ]
    waits = [(f"collectives of a step at world size {each.world_size}", each.waited_s, True) for each in times.times]
    for what, seconds, is_possible in (*found, *waits, ("a step's share of the commits", times.commit_s, True)):
        if not (is_possible and 0 <= seconds <= _MOST_S):
            raise StoreError(
                f"{url}: by the ledger, {what} took {seconds:.3g} s, which is impossible. Fit another run, or see what "
                f"is wrong in this one: planner audit {url}"
            )


def _times(run: RunFolder, progress: Callable[[int, int], None]) -> StepTimes | None:
    fold, numbers, reading = StepTimesFold(), run.segments(), 0
    for number, record in WholeLedger(run).new_records():
        if number != reading:
            progress(bisect_left(numbers, number), len(numbers))
            reading = number
        fold.add(record)
    return fold.times()


def _rates(url: str, job: Job, times: StepTimes) -> Rates:
    model = fit(measured_sizes(times.times, times.sizes), _traffic(job), times.sample_tokens)
    commits = f"{times.num_commits} commits in {times.num_steps} steps"
    commit_s = Term(value=times.commit_s, source="measured", because=commits if times.num_commits else "no commits")
    tokens = Term(value=times.sample_tokens, source="measured") if times.sample_tokens else None
    return Rates(
        run=url,
        job=job.name,
        settings={**place_settings(job), **step_settings(job)},
        sizes=times.sizes,
        model=replace(model, commit_s=commit_s),
        measured=times.times,
        sample_tokens=tokens,
        epoch_samples=times.header.num_samples,
    )


def _traffic(job: Job) -> Traffic:
    """What FSDP moves. In units of the model's weights, if their number is not known or most of them are frozen.

    Gradients are taken to be summed once per step, as they are if there is memory for whole sums.
    """
    size = commit_size(job, may_build=False)
    if isinstance(size, NotKnown) or (isinstance(job.model, HfModel) and job.model.lora is not None):
        return Traffic()
    weight_bytes = _BFLOAT16_BYTES if job.train.precision == "bf16" else FLOAT32_BYTES
    number = size.shapes.num_parameters
    return Traffic(gather_bytes=2 * number * weight_bytes, reduce_bytes=number * gradient_rule(job).element_bytes)
