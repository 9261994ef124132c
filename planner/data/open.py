"""Opens the data of a job, of any kind. It knows none of them."""

from typing import cast

from planner.base.text import enumerated
from planner.data.base import Measurable, Progress, SampleDataset, no_progress
from planner.errors import DataError, DataKindUnavailable, PlannerError
from planner.job import Data, Job, Model, data_spec_of
from planner.job.data_registry import DATA_KINDS


def open_dataset(data: Data, model: Model, progress: Progress = no_progress) -> SampleDataset:
    """Open and check the data set that a job names. Rows are cut to the model's context.

    Raises:
        DataError: a file is missing, empty or malformed. The message names the file, and the line if there is one.
        DataKindUnavailable: the package that has the kind of data fails.
    """
    spec = data_spec_of(data)
    opener = DATA_KINDS.named(spec.kind, spec.open)
    try:
        opened = opener(data, model, progress)
    except PlannerError:
        raise
    except (Exception, SystemExit) as error:  # a package's code may raise anything, and a retry would not help
        if spec.kind in DATA_KINDS.ours:
            raise
        raise DataKindUnavailable(f"kind of data {spec.kind}: {spec.open}: {type(error).__name__}: {error}") from error
    if spec.kind not in DATA_KINDS.ours and not isinstance(opened, SampleDataset):
        lacks = [name for name in dir(SampleDataset) if not name.startswith("_") and not hasattr(opened, name)]
        raise DataKindUnavailable(
            f"kind of data {spec.kind}: {spec.open} returned {type(opened).__name__}, which is no SampleDataset: it "
            f"has no {enumerated(lacks)}"
        )
    return cast("SampleDataset", opened)


def open_training(job: Job, progress: Progress = no_progress) -> SampleDataset:
    """Open the rows to train on. With `batch.max_tokens`, their lengths are known, or nothing tells them.

    Raises:
        DataError: a file is missing or a row cannot be used.
    """
    opened = open_dataset(job.data, job.model, progress)
    if job.batch.max_tokens is None or not isinstance(opened, Measurable):
        return opened
    return opened.measured(progress)


def open_evaluation(job: Job, progress: Progress = no_progress) -> SampleDataset | None:
    """Open the rows of `eval.data` as the rows to train on: with the same tokenizer, cut and packing. None without it.

    Raises:
        DataError: a file is missing or a row cannot be used.
    """
    if job.eval_data is None:
        return None
    try:
        return open_dataset(job.eval_data, job.model, progress)
    except DataError as error:
        raise DataError(_of_evaluation(str(error))) from error


def _of_evaluation(problem: str) -> str:
    """An error about the rows of `eval.data`, which were opened as a section `data`."""
    return f"eval.{problem}" if problem.startswith("data.") else f"eval.data: {problem}"
