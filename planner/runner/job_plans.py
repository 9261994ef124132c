"""`planner.plans`: how a job's global batch is split at each worker count."""

import operator
from collections.abc import Iterable
from typing import SupportsIndex

from planner.errors import PlanError
from planner.job import batch_sizes
from planner.plan import Plan, make_plan
from planner.runner.job_argument import AnyJob, as_job


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
