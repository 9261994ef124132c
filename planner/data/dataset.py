"""What every data set answers, and the one place that knows which class reads which kind."""

import hashlib
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.job import JsonlData, TextData

TokenIds = NDArray[np.uint8]
"""One row's tokens, shape `(n,)`, 2 <= n <= context + 1: inputs are `[:-1]`, labels `[1:]`."""


class Dataset(Protocol):
    """A map from row to tokens."""

    @property
    def num_rows(self) -> int:
        """Rows, numbered from 0."""
        ...

    @property
    def fingerprint(self) -> str:
        """64 hex digits over the content and the way it is cut into rows."""
        ...

    def tokens(self, row: int) -> TokenIds:
        """The row's token ids.

        Raises:
            DataError: the files are no longer what they were when the data set was opened.
        """
        ...


def open_dataset(data: TextData | JsonlData, context: int) -> Dataset:
    """Open and check the data set that a job names, cut to `context` tokens a row.

    Raises:
        DataError: a file is missing, empty or malformed; the message names it, and the line where there is one.
    """
    if isinstance(data, TextData):
        from planner.data.text import TextDataset

        return TextDataset.open(data.path, context)
    from planner.data.jsonl import JsonlDataset

    return JsonlDataset.open(data.path, data.field, context)


def check_sum(row: int, tokens: TokenIds) -> int:
    """64 bits over a row's number, its inputs and its labels; a step's checksum is their sum modulo 2^64.

    A sum, not an exclusive or: a row fed twice must not cancel out.
    """
    return check_sum_of_parts(row, tokens[:-1].tobytes(), tokens[1:].tobytes())


def check_sum_of_parts(row: int, inputs: bytes, labels: bytes) -> int:
    """The same from what entered a forward pass: a wrong label is as wrong as a wrong input."""
    digest = hashlib.blake2b(row.to_bytes(8, "little"), digest_size=8)
    digest.update(inputs)
    digest.update(labels)
    return int.from_bytes(digest.digest(), "little")
