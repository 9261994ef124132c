"""Micro-batches of prompts and completions as tensors: texts, pairs or feedback.

Shapes: m samples, n sequences, T tokens (the longest of the micro-batch, so T depends on nothing outside it).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor

from planner.data.base import SampleDataset
from planner.data.samples import NO_LOSS, Feedback, Ids, Pair, Text, check_sum_of, text_of
from planner.train.batches import TokenCounts


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Token sequences, padded on the right. A causal model never attends to the padding, which has no loss."""

    inputs: Tensor
    """`(n, T)` int64, on the CPU"""
    labels: Tensor
    """`(n, T)` int64, `NO_LOSS` at tokens without loss"""
    documents: Tensor | None
    """`(n, T)` int64, each token's document in a packed row. Attention stays within a document. None if not packed"""
    lengths: tuple[int, ...]
    """the n lengths without padding"""
    squares: int
    """the sum over all documents of the square of their length"""

    @classmethod
    def of(cls, texts: Sequence[Text]) -> "Sequences":
        """Stack texts, padded to the longest. Without texts, one token without loss, for a ghost."""
        texts = texts or [_NOTHING]
        lengths = tuple(len(text.inputs) for text in texts)
        # Padding is a separate document, numbered after the row's last one.
        documents = [text.documents for text in texts if text.documents is not None]
        return cls(
            inputs=_padded([text.inputs for text in texts], [0] * len(texts)),
            labels=_padded([text.labels for text in texts], [NO_LOSS] * len(texts)),
            documents=_padded(documents, [int(numbers[-1]) + 1 for numbers in documents]) if documents else None,
            lengths=lengths,
            squares=sum(_squares(text) for text in texts),
        )

    def pinned(self) -> "Sequences":
        """A copy in page-locked memory."""
        documents = None if self.documents is None else self.documents.pin_memory()
        return replace(self, inputs=self.inputs.pin_memory(), labels=self.labels.pin_memory(), documents=documents)

    def loss_tokens(self) -> Tensor:
        """The number of tokens with loss in each sequence, `(n,)` int64."""
        return (self.labels != NO_LOSS).sum(dim=1)

    def parts(self) -> list[tuple[bytes, ...]]:
        """`Text.parts` of each of the n texts, computed from the tensors."""
        tensors = (self.inputs, self.labels) if self.documents is None else (self.inputs, self.labels, self.documents)
        # Little-endian on every machine: checksums in the ledger must not depend on the machine.
        arrays = [tensor.numpy().astype("<i4") for tensor in tensors]
        return [tuple(array[i, :length].tobytes() for array in arrays) for i, length in enumerate(self.lengths)]


@dataclass(frozen=True, kw_only=True)
class SampleBatch:
    """Samples of text. A ghost has no rows, and one sequence without loss."""

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


def text_batch(dataset: SampleDataset, rows: list[int], position: int) -> SampleBatch:
    """A micro-batch of texts.

    Raises:
        DataError: a row can no longer be read.
    """
    return batch_of(rows, cast("list[Text]", dataset.samples(rows)), position)


def batch_of(rows: Sequence[int], texts: Sequence[Text], position: int = 0) -> SampleBatch:
    """A micro-batch of texts, one for each row. Without rows, a ghost."""
    return SampleBatch(rows=tuple(rows), position=position, sequences=Sequences.of(texts))


def pair_batch(dataset: SampleDataset, rows: list[int], position: int) -> PairBatch:
    """A micro-batch of pairs.

    Raises:
        DataError: a row can no longer be read.
    """
    pairs = cast("list[Pair]", dataset.samples(rows)) or [Pair(chosen=_NOTHING, rejected=_NOTHING)]
    texts = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    return PairBatch(rows=tuple(rows), position=position, sequences=Sequences.of(texts))


def feedback_batch(dataset: SampleDataset, rows: list[int], position: int) -> FeedbackBatch:
    """A micro-batch of all rows but the last, which is only the partner of the one before (`Loader.has_partners`).

    Raises:
        DataError: a row can no longer be read.
    """
    samples = cast("list[Feedback]", dataset.samples(rows))
    own, partners = samples[:-1], samples[1:]
    crossed = [
        text_of(sample.prompt, partner.completion, sample.context)
        for sample, partner in zip(own, partners, strict=True)
    ]
    return FeedbackBatch(
        rows=tuple(rows[:-1]),
        position=position,
        sequences=Sequences.of([sample.text for sample in own]),
        is_desirable=torch.tensor([sample.is_desirable for sample in own], dtype=torch.bool),
        mismatched=Sequences.of(crossed),
    )


def _squares(text: Text) -> int:
    """The sum over a text's documents of the square of their length."""
    if text.documents is None:
        return len(text.inputs) ** 2
    # No document has the number -1, so both ends of the row count as boundaries.
    begins = np.flatnonzero(np.diff(text.documents, prepend=-1, append=-1))
    return int((np.diff(begins) ** 2).sum())


_NOTHING = Text(inputs=np.zeros(1, np.int32), labels=np.full(1, NO_LOSS, np.int32))


def _padded(arrays: Sequence[Ids], fills: Sequence[int]) -> Tensor:
    """Stack n arrays of unequal lengths into `(n, T)` int64, each padded with its fill value."""
    # int64: torch's cross entropy takes no int32 labels.
    padded = np.empty((len(arrays), max(len(array) for array in arrays)), np.int64)
    for row, array, fill in zip(padded, arrays, fills, strict=True):
        row[: len(array)] = array
        row[len(array) :] = fill
    return torch.from_numpy(padded)
