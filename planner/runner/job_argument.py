"""Reads the job that a caller names: a `Job`, or the path of a job file."""

import os
import shlex
from collections.abc import Collection, Sequence

from planner import files
from planner.job import Job

AnyJob = Job | str | os.PathLike[str]
"""a job, or the path of its file"""

_TRL = {"per_device_train_batch_size", "model_name_or_path"}
_DEEPSPEED = {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"}


def read_job(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Job:
    """Read the job in a YAML file, and apply overrides such as `train.steps=400` in order.

    A single string counts as one override.

    Raises:
        JobError: the file cannot be read, is wrong, or is a recipe for `planner convert`. One line per mistake.
    """
    overrides = [overrides] if isinstance(overrides, str) else overrides
    return files.read_job(os.fspath(path), overrides, hint=recipe_hint)


def as_job(job: AnyJob) -> Job:
    """Return the job, read from its file if `job` is a path.

    Raises:
        JobError: see `read_job`.
    """
    return job if isinstance(job, Job) else read_job(job)


def recipe_hint(source: str, keys: Collection[str]) -> str:
    """What to do with the file `source` if its top-level keys are those of another system's recipe, else empty."""
    if {"batch", "train"} & set(keys):
        return ""
    if _TRL & set(keys):
        system = "a TRL recipe"
    elif _DEEPSPEED & set(keys):
        system = "a DeepSpeed configuration"
    else:
        return ""
    return f"found {system}, not a job. Make a job of it: planner convert {shlex.quote(source)}"
