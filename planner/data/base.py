"""The protocols of all data sets, and what a row adds to the evidence of a step. It knows no kind of data."""

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from planner.data.samples import Sample, check_sum_of

TokenIds = NDArray[np.uint8]
"""One row's tokens, shape `(n,)`, 2 <= n <= context + 1. Inputs are `[:-1]`, labels `[1:]`."""

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


class AnyDataset(Protocol):
    """A map from row to sample, whatever a sample is."""

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

    def evidence(self, row: int) -> RowContribution:
        """The row's counts, from its content as it is read now.

        Raises:
            DataError: the row cannot be read any more.
        """
        ...


class Dataset(AnyDataset, Protocol):
    """A map from row to tokens."""

    def tokens(self, row: int) -> TokenIds:
        """The row's token ids.

        Raises:
            DataError: the files have changed since the data set was opened.
        """
        ...


class SampleDataset(AnyDataset, Protocol):
    """A map from row to a sample of prompt and completion. All samples are of one kind."""

    def sample(self, row: int) -> Sample:
        """The row's sample: `Text` for chat data, `Pair` for pairs, `Feedback` for feedback.

        Raises:
            DataError: the files have changed since the data set was opened.
        """
        ...

    def samples(self, rows: Sequence[int]) -> list[Sample]:
        """The samples of rows, in this order. Rows that are tokenized on demand are tokenized together.

        Raises:
            DataError: the files have changed since the data set was opened.
        """
        ...


def token_row_counts(row: int, tokens: TokenIds) -> RowContribution:
    """The counts of a row of tokens."""
    return RowContribution(tokens=len(tokens) - 1, check_sum=check_sum(row, tokens))


def sample_row_counts(row: int, sample: Sample) -> RowContribution:
    """The counts of a row of prompt and completion."""
    return RowContribution(tokens=sample.num_tokens, check_sum=check_sum_of(row, sample.parts()))


def check_sum(row: int, tokens: TokenIds) -> int:
    """64 bits over a row's number, its inputs and its labels.

    A step's checksum is the sum over its rows modulo 2^64, not an exclusive or: a row that is fed twice must not cancel
    out.
    """
    return check_sum_of_parts(row, tokens[:-1].tobytes(), tokens[1:].tobytes())


def check_sum_of_parts(row: int, inputs: bytes, labels: bytes) -> int:
    """`check_sum` from the bytes that entered a forward pass, so that a wrong label changes it."""
    digest = hashlib.blake2b(row.to_bytes(8, "little"), digest_size=8)
    digest.update(inputs)
    digest.update(labels)
    return int.from_bytes(digest.digest(), "little")
