"""Micro-batches of prompts and completions as tensors: texts, pairs or feedback.

Sequences have one of two forms. What a text is computed to does not depend on it, but for rounding:

    padded  `(n, T)`, a row for each text, T tokens of the longest
    packed  `(1, T)`, all texts behind each other in one row, T tokens in all. No padding

Shapes: m samples, n texts, r rows (n or 1), T tokens of a row. T depends on nothing outside the micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from planner.data.base import SampleDataset
from planner.data.samples import NO_LOSS, Feedback, Ids, Pair, Text, check_sum_of, text_of
from planner.train.batches import TokenCounts


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Texts, padded on the right or packed. A causal model never attends to the padding, which has no loss."""

    inputs: Tensor
    """`(r, T)` int64, on the CPU"""
    labels: Tensor
    """`(r, T)` int64, `NO_LOSS` at tokens without loss"""
    documents: Tensor | None
    """`(r, T)` int64, each token's document. Attention stays within a document. None if each row is one text"""
    lengths: tuple[int, ...]
    """the n lengths without padding"""
    squares: int
    """the sum over all documents of the square of their length"""
    is_packed: bool = False
    """whether several texts are in one row. One text alone is the same in both forms"""
    shifts: tuple[int, ...] | None = None
    """of packed texts that are packed rows themselves: n numbers, each added to the document numbers of its text"""

    @classmethod
    def of(cls, texts: Sequence[Text], *, is_packed: bool = False) -> "Sequences":
        """The sequences of texts: padded to the longest, or packed. Without texts, one token without loss for a ghost.

        Either all texts have documents of their own, or none has.
        """
        if len(texts) > 1 and is_packed:
            return _packed(texts)
        texts = texts or [_NOTHING]
        # Padding is a separate document, numbered after the row's last one.
        documents = [text.documents for text in texts if text.documents is not None]
        return cls(
            inputs=_padded([text.inputs for text in texts], [0] * len(texts)),
            labels=_padded([text.labels for text in texts], [NO_LOSS] * len(texts)),
            documents=_padded(documents, [int(numbers[-1]) + 1 for numbers in documents]) if documents else None,
            lengths=tuple(len(text.inputs) for text in texts),
            squares=sum(_squares(text) for text in texts),
        )

    def pinned(self) -> "Sequences":
        """A copy in page-locked memory."""
        documents = None if self.documents is None else self.documents.pin_memory()
        return replace(self, inputs=self.inputs.pin_memory(), labels=self.labels.pin_memory(), documents=documents)

    def loss_tokens(self) -> Tensor:
        """The number of tokens with loss in each text, `(n,)` int64."""
        has_loss = self.labels != NO_LOSS
        if not self.is_packed:
            return has_loss.sum(dim=1)
        return torch.stack([of_text.sum() for of_text in torch.split(has_loss[0], list(self.lengths))])

    def parts(self) -> list[tuple[bytes, ...]]:
        """`Text.parts` of each of the n texts, computed from the tensors."""
        columns = [self._by_text(self.inputs), self._by_text(self.labels)]
        if (own := self._own_documents()) is not None:
            columns.append(own)
        # Little-endian on every machine: checksums in the ledger must not depend on the machine.
        return [tuple(array.astype("<i4").tobytes() for array in of_text) for of_text in zip(*columns, strict=True)]

    def _by_text(self, tensor: Tensor) -> list[NDArray[np.int64]]:
        """`(r, T)` -> the numbers of each text, `(length,)` each, without padding."""
        array = tensor.numpy()
        if not self.is_packed:
            return [row[:length] for row, length in zip(array, self.lengths, strict=True)]
        return np.split(array[0], np.cumsum(self.lengths)[:-1])

    def _own_documents(self) -> list[NDArray[np.int64]] | None:
        """The document numbers that the texts came with. None if they had none."""
        if self.documents is None or (self.is_packed and self.shifts is None):
            return None
        shifts = self.shifts or (0,) * len(self.lengths)
        return [numbers - shift for numbers, shift in zip(self._by_text(self.documents), shifts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class SampleBatch:
    """Samples of text. A ghost has no rows, and one text without loss (a pair of them in pairs)."""

    rows: tuple[int, ...]
    position: int
    """the first sample's position in the order. It identifies the micro-batch on any worker"""
    sequences: Sequences
    """of the rows' own samples"""

    @property
    def content(self) -> Self:
        """The batch itself, which an objective gets."""
        return self

    @property
    def num_tokens(self) -> int:
        """The number of tokens with loss."""
        return int(self.sequences.loss_tokens().sum())

    @property
    def token_counts(self) -> TokenCounts:
        """How many tokens it has."""
        padded = self.sequences.inputs.numel()
        if not self.rows:
            return TokenCounts(padded=padded)
        return TokenCounts(inputs=sum(self.sequences.lengths), padded=padded, squares=self.sequences.squares)

    def pinned(self) -> Self:
        """A copy in page-locked memory."""
        return replace(self, sequences=self.sequences.pinned())

    def check_sum(self) -> int:
        """Sum of `samples.check_sum_of` over the rows' own samples, computed from the tensors."""
        texts = self.sequences.parts()
        return sum(check_sum_of(row, self.parts_of(i, texts)) for i, row in enumerate(self.rows))

    def parts_of(self, i: int, texts: Sequence[tuple[bytes, ...]]) -> tuple[bytes, ...]:
        """`Sample.parts` of row i's own sample, computed from the tensors. `texts`: those of the n sequences."""
        return texts[i]


@dataclass(frozen=True, kw_only=True)
class PairBatch(SampleBatch):
    """m pairs as 2m sequences, first all chosen ones, then all rejected ones, so that FSDP gathers weights once."""

    def parts_of(self, i: int, texts: Sequence[tuple[bytes, ...]]) -> tuple[bytes, ...]:
        """`Pair.parts` of row i."""
        return texts[i] + texts[i + len(self.rows)]


@dataclass(frozen=True, kw_only=True)
class FeedbackBatch(SampleBatch):
    """m completions, and m mismatched sequences: each sample's prompt with the next sample's completion."""

    is_desirable: Tensor
    """`(m,)` bool"""
    mismatched: Sequences
    """`(m, T')`. Without a checksum, as each is made of two samples that have one"""

    @property
    def token_counts(self) -> TokenCounts:
        """How many tokens it has."""
        counts, mismatched = super().token_counts, self.mismatched
        if not self.rows:
            return counts
        return replace(counts, mismatched=sum(mismatched.lengths), mismatched_squares=mismatched.squares)

    def pinned(self) -> Self:
        """A copy in page-locked memory."""
        return replace(
            self,
            sequences=self.sequences.pinned(),
            mismatched=self.mismatched.pinned(),
            is_desirable=self.is_desirable.pin_memory(),
        )

    def parts_of(self, i: int, texts: Sequence[tuple[bytes, ...]]) -> tuple[bytes, ...]:
        """`Feedback.parts` of row i."""
        return (*texts[i], bytes([bool(self.is_desirable[i])]))


def text_batch(dataset: SampleDataset, rows: list[int], position: int, *, is_packed: bool = False) -> SampleBatch:
    """A micro-batch of texts.

    Raises:
        DataError: a row can no longer be read.
    """
    return batch_of(rows, cast("list[Text]", dataset.samples(rows)), position, is_packed=is_packed)


def batch_of(rows: Sequence[int], texts: Sequence[Text], position: int = 0, *, is_packed: bool = False) -> SampleBatch:
    """A micro-batch of texts, one for each row. Without rows, a ghost."""
    return SampleBatch(rows=tuple(rows), position=position, sequences=Sequences.of(texts, is_packed=is_packed))


def pair_batch(dataset: SampleDataset, rows: list[int], position: int, *, is_packed: bool = False) -> PairBatch:
    """A micro-batch of pairs.

    Raises:
        DataError: a row can no longer be read.
    """
    pairs = cast("list[Pair]", dataset.samples(rows)) or [Pair(chosen=_NOTHING, rejected=_NOTHING)]
    texts = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    # A ghost is not packed: it would have two tokens in a row, and compiled blocks leave out rows of one alone.
    sequences = Sequences.of(texts, is_packed=is_packed and bool(rows))
    return PairBatch(rows=tuple(rows), position=position, sequences=sequences)


def feedback_batch(
    dataset: SampleDataset, rows: list[int], position: int, *, partners: list[int], is_packed: bool = False
) -> FeedbackBatch:
    """A micro-batch of completions.

    Args:
        dataset: has the samples.
        rows: of the samples.
        position: of the first sample.
        partners: a row for each of `rows`, whose completion the sample's prompt gets (`Loader.has_partners`).
        is_packed: whether the texts are packed.

    Raises:
        DataError: a row can no longer be read.
    """
    distinct = list(dict.fromkeys([*rows, *partners]))
    samples = dict(zip(distinct, cast("list[Feedback]", dataset.samples(distinct)), strict=True))
    own = [samples[row] for row in rows]
    crossed = [
        text_of(sample.prompt, samples[partner].completion, sample.context)
        for sample, partner in zip(own, partners, strict=True)
    ]
    return FeedbackBatch(
        rows=tuple(rows),
        position=position,
        sequences=Sequences.of([sample.text for sample in own], is_packed=is_packed),
        is_desirable=torch.tensor([sample.is_desirable for sample in own], dtype=torch.bool),
        mismatched=Sequences.of(crossed, is_packed=is_packed),
    )


def _squares(text: Text) -> int:
    """The sum over a text's documents of the square of their length."""
    if text.documents is None:
        return len(text.inputs) ** 2
    # No document has the number -1, so both ends of the row count as boundaries.
    begins = np.flatnonzero(np.diff(text.documents, prepend=-1, append=-1))
    return int((np.diff(begins) ** 2).sum())


def _packed(texts: Sequence[Text]) -> Sequences:
    """Lay texts behind each other in one row.

    A text's own documents stay apart: numbers go on counting from one text to the next.
    """
    has_documents = texts[0].documents is not None
    documents, shifts, next_number = [], [], 0
    for text in texts:
        own = text.documents if text.documents is not None else np.zeros(len(text.inputs), np.int32)
        shifts.append(next_number - int(own[0]))
        documents.append(own.astype(np.int64) + shifts[-1])
        next_number = int(documents[-1][-1]) + 1
    return Sequences(
        inputs=_row([text.inputs for text in texts]),
        labels=_row([text.labels for text in texts]),
        documents=_row(documents),
        lengths=tuple(len(text.inputs) for text in texts),
        squares=sum(_squares(text) for text in texts),
        is_packed=True,
        shifts=tuple(shifts) if has_documents else None,
    )


_NOTHING = Text(inputs=np.zeros(1, np.int32), labels=np.full(1, NO_LOSS, np.int32))


def _row(arrays: Sequence[NDArray[np.integer]]) -> Tensor:
    """Arrays behind each other, `(1, T)` int64."""
    return torch.from_numpy(np.concatenate(arrays).astype(np.int64)[None])


def _padded(arrays: Sequence[Ids], fills: Sequence[int]) -> Tensor:
    """Stack n arrays of unequal lengths into `(n, T)` int64, each padded with its fill value."""
    # int64: torch's cross entropy takes no int32 labels.
    padded = np.empty((len(arrays), max(len(array) for array in arrays)), np.int64)
    for row, array, fill in zip(padded, arrays, fills, strict=True):
        row[: len(array)] = array
        row[len(array) :] = fill
    return torch.from_numpy(padded)
