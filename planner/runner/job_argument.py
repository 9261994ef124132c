"""Reads the job that a caller names: a `Job`, or the path of a job file."""

import os
from collections.abc import Sequence

from planner import files
from planner.errors import JobError
from planner.job import Job

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
