"""The job that a caller names and its plans: `planner.read_job` and `planner.plans`."""

import operator
import os
from collections.abc import Iterable, Sequence
from typing import SupportsIndex

from planner import files
from planner.errors import JobError, PlanError
from planner.job import Job, batch_sizes
from planner.plan import Plan, make_plan

AnyJob = Job | str | os.PathLike[str]
"""a job, or the path of its file"""


def read_job(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Job:
    """Read the job in a YAML file, and apply overrides such as `train.steps=400` in order.

    A single string counts as one override.

    Raises:
        JobError: the file cannot be read, or is wrong, with one line per mistake. Or it is no job: a recipe, a
            cluster file, a run's folder. Then one line says what it is and what takes it.
    """
    overrides = [overrides] if isinstance(overrides, str) else overrides
    try:
        return files.read_job(os.fspath(path), overrides)
    except JobError:
        from planner.runner.not_a_job import not_a_job  # only for a wrong file: it loads all recipe systems

        if other := not_a_job(os.fspath(path)):
            raise other from None
        raise


def as_job(job: AnyJob) -> Job:
    """Return the job, read from its file if `job` is a path.

    Raises:
        JobError: see `read_job`.
    """
    return job if isinstance(job, Job) else read_job(job)


def plans(job: AnyJob, gpus: int | Iterable[int] | None = None) -> list[Plan]:
    """Return a job's plan at each worker count, as `planner plan` shows it.

    Args:
        job: a job, or the path of its file.
        gpus: the worker counts. By default all from workers.min to workers.max.

    Raises:
        JobError: the job's file cannot be read or is wrong.
        PlanError: no plan serves a count.
    """
    job = as_job(job)
    counts = range(job.workers.min, job.workers.max + 1) if gpus is None else _counts(gpus)
    return [make_plan(batch_sizes(job), count) for count in counts]


def _counts(gpus: int | Iterable[int]) -> list[int]:
    """The counts as Python integers, because a plan's digest is made of them.

    Raises:
        PlanError: a count is not a whole number.
    """
    given = list(gpus) if isinstance(gpus, Iterable) else [gpus]
    whole = [count for count in given if isinstance(count, SupportsIndex) and not isinstance(count, bool)]
    if len(whole) < len(given):
        raise PlanError(f"gpus={gpus!r}: write whole numbers, such as 4, [1, 2, 4] or range(1, 9)")
    return [operator.index(count) for count in whole]
