"""What every data set answers, and what a row adds to the evidence of a step. No kind of data is known here."""

import hashlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from planner.data.samples import Sample, check_sum_of

TokenIds = NDArray[np.uint8]
"""One row's tokens, shape `(n,)`, 2 <= n <= context + 1: inputs are `[:-1]`, labels `[1:]`."""

BOUNDARY = b"\0"
"""The token before and behind a text that is a row by itself: even an empty text then has one token to predict."""

Progress = Callable[[int, int], None]
"""Called with `(done, of)` while something takes long."""


def no_progress(_done: int, _of: int) -> None:
    """Ignore the progress, where nobody watches."""


class RowCounts(NamedTuple):
    """What a row adds to the counts of a step that uses it."""

    tokens: int
    """loss-bearing ones; 0 in a data set of the user's own, whose samples need not have any"""
    check_sum: int
    """64 bits over the row's number and its content; a step's checksum is their sum modulo 2^64"""


class AnyDataset(Protocol):
    """A map from row to sample, whatever a sample is."""

    @property
    def num_rows(self) -> int:
        """Rows, numbered from 0."""
        ...

    @property
    def fingerprint(self) -> str:
        """64 hex digits over the content and the way it is cut into rows."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each thing that was done to rows: left out, cut, packed. Empty if nothing was."""
        ...

    def evidence(self, row: int) -> RowCounts:
        """The row's evidence, from its content as it is read now.

        Raises:
            DataError: the row cannot be read any more.
        """
        ...


class Dataset(AnyDataset, Protocol):
    """A map from row to tokens."""

    def tokens(self, row: int) -> TokenIds:
        """The row's token ids.

        Raises:
            DataError: the files are no longer what they were when the data set was opened.
        """
        ...


class SampleDataset(AnyDataset, Protocol):
    """A map from row to a sample of prompt and completion, all of one kind."""

    def sample(self, row: int) -> Sample:
        """The row's sample: `Text` of chat data, `Pair` of pairs, `Feedback` of feedback.

        Raises:
            DataError: the files are no longer what they were when the data set was opened.
        """
        ...


def token_evidence(row: int, tokens: TokenIds) -> RowCounts:
    """The evidence of a row of tokens."""
    return RowCounts(tokens=len(tokens) - 1, check_sum=check_sum(row, tokens))


def sample_evidence(row: int, sample: Sample) -> RowCounts:
    """The evidence of a row of prompt and completion."""
    return RowCounts(tokens=sample.num_tokens, check_sum=check_sum_of(row, sample.parts()))


def check_sum(row: int, tokens: TokenIds) -> int:
    """64 bits over a row's number, its inputs and its labels; a step's checksum is their sum modulo 2^64.

    A sum, not an exclusive or: a row fed twice must not cancel out.
    """
    return check_sum_of_parts(row, tokens[:-1].tobytes(), tokens[1:].tobytes())


def check_sum_of_parts(row: int, inputs: bytes, labels: bytes) -> int:
    """The checksum of a row of tokens, from the bytes that entered a forward pass: a wrong label is found, too."""
    digest = hashlib.blake2b(row.to_bytes(8, "little"), digest_size=8)
    digest.update(inputs)
    digest.update(labels)
    return int.from_bytes(digest.digest(), "little")
