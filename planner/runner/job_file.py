"""A job as a caller gives it: a job, or the path of a file that may be another system's recipe."""

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
    """The job in a YAML file, with overrides such as `train.steps=400` laid over it in the order given.

    A string is one override.

    Raises:
        JobError: the file cannot be read, is wrong, or is a recipe for `planner convert`. One line per mistake.
    """
    overrides = [overrides] if isinstance(overrides, str) else overrides
    return files.read_job(os.fspath(path), overrides, hint=recipe_hint)


def as_job(job: AnyJob) -> Job:
    """The job itself, read from its file if a path is given.

    Raises:
        JobError: see `read_job`.
    """
    return job if isinstance(job, Job) else read_job(job)


def recipe_hint(source: str, keys: Collection[str]) -> str:
    """What to do with the file `source` if its top-level keys are those of a recipe of another system; else empty."""
    if {"batch", "train"} & set(keys):
        return ""
    if _TRL & set(keys):
        system = "a recipe of TRL's"
    elif _DEEPSPEED & set(keys):
        system = "a configuration of DeepSpeed's"
    else:
        return ""
    return f"found {system}, not a job; make a job of it: planner convert {shlex.quote(source)}"
