"""The protocol of all data sets, and what a row adds to the evidence of a step. It knows no kind of data."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from planner.data.samples import Sample, check_sum_of

BOUNDARY = b"\0"
"""The token before and after a text that is a row by itself. So even an empty text has one token to predict."""

Progress = Callable[[int, int], None]
"""Called with `(done, of)` during long work."""


def no_progress(_done: int, _of: int) -> None:
    """A `Progress` that ignores its arguments."""


class RowContribution(NamedTuple):
    """What a row adds to the counts of a step that uses it."""

    tokens: int
    """tokens with loss. 0 in a user's own data set, whose samples may have no tokens"""
    check_sum: int
    """64 bits over the row's number and its content. A step's checksum is the sum over its rows modulo 2^64."""


class RowLengths(NamedTuple):
    """How long the samples of some rows are. Both arrays have shape `(n,)`, a number for each of the n rows."""

    tokens: NDArray[np.int64]
    """input tokens without padding: those of both completions of a pair, each with its prompt"""
    squares: NDArray[np.int64]
    """the sum over the sample's documents of the square of their length: what attention costs"""


class SetRows(NamedTuple):
    """The rows of one set of a mixture. They follow those of the set before it."""

    name: str
    """path, configuration and split"""
    num_rows: int
    fingerprint: str
    """what the set's fingerprint would be if it were the only one: 64 hex digits"""


@runtime_checkable
class SampleDataset(Protocol):
    """A map from row to sample. All samples are of one kind. Every kind of data is one of these."""

    @property
    def num_rows(self) -> int:
        """Number of rows. Rows are numbered from 0."""
        ...

    @property
    def fingerprint(self) -> str:
        """64 hex digits over the content and how it is cut into rows."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each change to rows: left out, cut, packed. Empty if there was none."""
        ...

    @property
    def sets(self) -> tuple[SetRows, ...]:
        """The sets of a mixture, in the order of their rows. Empty for any other data set."""
        ...

    def sample(self, row: int) -> Any:
        """The row's sample: a `planner.data.samples.Sample`, or what a user's own data set returns.

        Raises:
            DataError: the row cannot be read any more, or has changed since the data set was opened.
        """
        ...

    def samples(self, rows: Sequence[int]) -> list[Any]:
        """The samples of rows, in this order. Rows that are tokenized on demand are tokenized together.

        Raises:
            DataError: as `sample`.
        """
        ...

    def evidence(self, row: int) -> RowContribution:
        """The counts of the row's sample, read now.

        Raises:
            DataError: as `sample`.
        """
        ...

    def lengths(self, rows: Sequence[int] | NDArray[np.int64]) -> RowLengths:
        """How long the samples of rows are, without making the samples: `TokenCounts.inputs` and `.squares` of each.

        They follow from the content and its cut, which `fingerprint` covers: equal data sets have equal lengths.

        Raises:
            DataError: the length of a sample is known only when it is made, or the data was altered.
        """
        ...


@runtime_checkable
class Measurable(Protocol):
    """A data set whose samples' lengths are known only after all of them were made once."""

    def measured(self, progress: Progress) -> SampleDataset:
        """The data set with all lengths. Its fingerprint covers them, too.

        Raises:
            DataError: a row cannot be used.
        """
        ...


def sample_row_counts(row: int, sample: Sample) -> RowContribution:
    """The counts of a row's sample."""
    return RowContribution(tokens=sample.num_tokens, check_sum=check_sum_of(row, sample.parts()))
