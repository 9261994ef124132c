"""The plans of a job: how its global batch is split at each worker count."""

import operator
from collections.abc import Iterable
from typing import SupportsIndex

from planner.errors import PlanError
from planner.job import batch_sizes
from planner.plan import Plan, make_plan
from planner.runner.job_file import AnyJob, as_job


def plans(job: AnyJob, gpus: int | Iterable[int] | None = None) -> list[Plan]:
    """What `planner plan` shows: the plan at each count, by default at each from workers.min to workers.max.

    Raises:
        JobError: the job's file cannot be read or is wrong.
        PlanError: no plan serves a count.
    """
    job = as_job(job)
    counts = range(job.workers.min, job.workers.max + 1) if gpus is None else _counts(gpus)
    return [make_plan(batch_sizes(job), count) for count in counts]


def _counts(gpus: int | Iterable[int]) -> list[int]:
    """The counts as Python's own integers: a plan's digest is made of them.

    Raises:
        PlanError: one is no whole number.
    """
    given = list(gpus) if isinstance(gpus, Iterable) else [gpus]
    whole = [count for count in given if isinstance(count, SupportsIndex) and not isinstance(count, bool)]
    if len(whole) < len(given):
        raise PlanError(f"gpus={gpus!r}: write whole numbers of GPUs, such as 4, [1, 2, 4] or range(1, 9)")
    return [operator.index(count) for count in whole]
