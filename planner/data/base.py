"""What every data set answers, and the one place that knows which class reads which kind."""

import hashlib
from collections.abc import Callable
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from planner.data.samples import Sample, check_sum_of
from planner.job import Data, JsonlData, Model, OwnData, OwnModel, TextData, TokensData

TokenIds = NDArray[np.uint8]
"""One row's tokens, shape `(n,)`, 2 <= n <= context + 1: inputs are `[:-1]`, labels `[1:]`."""

Progress = Callable[[int, int], None]
"""hears `(done, of)` while something is long in the doing"""


def no_progress(_done: int, _of: int) -> None:
    """For whom nobody watches."""


class AnyDataset(Protocol):
    """A map from row to sample, whatever that is."""

    @property
    def num_rows(self) -> int:
        """Rows, numbered from 0."""
        ...

    @property
    def fingerprint(self) -> str:
        """64 hex digits over the content and the way it is cut into rows."""
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


def open_dataset(data: Data, model: Model, progress: Progress = no_progress) -> AnyDataset:
    """Open and check the data set that a job names; rows are cut to the model's context.

    Raises:
        DataError: a file is missing, empty or malformed; the message names it, and the line where there is one.
    """
    if isinstance(data, OwnData):
        from planner.data.own import OwnDataset

        return OwnDataset.open(data.path)
    assert not isinstance(model, OwnModel)  # the job was checked at birth
    if not isinstance(data, TextData | JsonlData | TokensData):
        from planner.data.conversations import open_conversations

        return open_conversations(data, model, progress)
    context = model.context
    if isinstance(data, TextData):
        from planner.data.text import TextDataset

        return TextDataset.open(data.path, context)
    if isinstance(data, TokensData):
        from planner.data.tokens import TokensDataset

        return TokensDataset.open(data.path, context)
    from planner.data.jsonl import JsonlDataset

    return JsonlDataset.open(data.path, data.field, context, progress)


def evidence(dataset: AnyDataset, row: int) -> tuple[int, int]:
    """What a row adds to a step's tokens and to its checksum; a data set of the user's own has no tokens.

    Raises:
        DataError: the row cannot be read any more.
    """
    from planner.data.own import OwnDataset
    from planner.data.sample_sets import SampleSet

    if isinstance(dataset, OwnDataset):
        return 0, dataset.check_sum(row)
    if isinstance(dataset, SampleSet):
        sample = dataset.sample(row)
        return sample.num_tokens, check_sum_of(row, sample.parts())
    content = cast("Dataset", dataset).tokens(row)
    return len(content) - 1, check_sum(row, content)


def notes_of(dataset: AnyDataset) -> tuple[str, ...]:
    """What became of the rows where not all are there as they were (left out, cut, packed), one sentence each."""
    notes: tuple[str, ...] = getattr(dataset, "notes", ())
    return notes


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
