"""The plans of a job: how its global batch is split at each worker count."""

from collections.abc import Iterable
from operator import index

from planner.job import batch_sizes
from planner.plan import Plan, choose
from planner.runner.job_file import AnyJob, as_job


def plans(job: AnyJob, gpus: Iterable[int] | None = None) -> list[Plan]:
    """What `planner plan` shows: the plan at each count, by default at each from workers.min to workers.max.

    Raises:
        JobError: the job's file cannot be read or is wrong.
        PlanError: no plan serves a count.
        TypeError: a count is no whole number.
    """
    job = as_job(job)
    counts = range(job.workers.min, job.workers.max + 1) if gpus is None else gpus
    return [choose(batch_sizes(job), index(count)) for count in counts]
