"""Checks that every sample of a job's data fits into a micro-batch of `batch.max_tokens`."""

import numpy as np

from planner.base.text import counted
from planner.data.base import Measurable, SampleDataset
from planner.data.evaluation import training_part
from planner.errors import DataError
from planner.job import Job, batch_sizes

# Some megabytes at a time: a window may have a document for every second token.
_ROWS_PER_READ = 2**14


def require_fitting(job: Job, dataset: SampleDataset) -> None:
    """Check that no sample is longer than `batch.max_tokens`, those for evaluation included.

    It takes the lengths of all rows. Windows of a text and packed rows have at most `model.context` tokens, so theirs
    are not taken if that fits.

    Raises:
        DataError: a sample is longer, or the lengths are not known.
    """
    if job.batch.max_tokens is None:
        return
    most = batch_sizes(job).max_tokens if job.batch.max_tokens == "auto" else job.batch.max_tokens
    window = job.data.sample_tokens(job.model)
    assert most is not None  # auto stands for a number
    require_lengths(dataset)
    is_bound = window is not None and window <= most
    # One row shows whether lengths are known at all.
    row, length = _longest(dataset, 1 if is_bound else dataset.num_rows)
    if length > most:
        raise DataError.of(
            "batch.max_tokens",
            f"{_named(row, dataset)} has {counted(length, 'token')}, the most of all, and a micro-batch takes {most}. "
            f"Write at least batch.max_tokens: {length}, or lower model.context",
        )


def require_fitting_lowered(job: Job, dataset: SampleDataset, max_tokens: int) -> None:
    """Check that no sample is longer than a cap that the run has lowered. Its data may have changed since.

    Raises:
        DataError: a sample is longer.
    """
    longest = longest_sample(job, dataset) or 0
    if longest > max_tokens:
        raise DataError.of(
            "batch.max_tokens",
            f"the longest sample has {counted(longest, 'token')}, and a micro-batch takes {max_tokens} since memory "
            f"ran out. Write another number, at least {longest}: then lowered caps no longer count",
        )


def longest_sample(job: Job, dataset: SampleDataset) -> int | None:
    """Tokens of the longest sample, those for evaluation included.

    For windows and packed rows it is the most that one may have, so that no length is taken. None for rows on demand
    without `batch.max_tokens`: they would be tokenized only for this.
    """
    if (window := job.data.sample_tokens(job.model)) is not None:
        return window
    if job.batch.max_tokens is None and isinstance(training_part(dataset), Measurable):
        return None
    return _longest(dataset, dataset.num_rows)[1]


def require_lengths(dataset: SampleDataset) -> None:
    """Check that a data set has lengths at all. A package's class may be from before there were any.

    Raises:
        DataError: it has none.
    """
    if not hasattr(part := training_part(dataset), "lengths"):
        raise DataError(
            f"{type(part).__name__} has no method lengths(rows), so how long its samples are is not known. Remove "
            "batch.max_tokens, or update the package that has this kind of data"
        )


def _longest(dataset: SampleDataset, num_rows: int) -> tuple[int, int]:
    """The first of the longest samples in rows `[0, num_rows)`: its row and its tokens."""
    longest = (0, 0)
    for start in range(0, num_rows, _ROWS_PER_READ):
        tokens = dataset.lengths(np.arange(start, min(start + _ROWS_PER_READ, num_rows))).tokens
        found = int(tokens.argmax())
        longest = max(longest, (start + found, int(tokens[found])), key=lambda each: each[1])
    return longest


def _named(row: int, dataset: SampleDataset) -> str:
    training = training_part(dataset)
    behind = row - training.num_rows
    if behind >= 0:
        return f"row {behind} of those of eval.data (the first is row 0)"
    for part in training.sets:
        if row < part.num_rows:
            return f"row {row} of {part.name} in data.mixture (the first is row 0)"
        row -= part.num_rows
    return f"row {row} of data (the first is row 0)"
