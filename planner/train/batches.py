"""One worker's micro-batches of an optimizer step: from positions in the data order to tensors.

Shapes: m samples, T tokens (the longest of the micro-batch).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from planner.base import progress_counter
from planner.data.base import Dataset, TokenIds, check_sum_of_parts
from planner.data.samples import NO_LOSS
from planner.order.order import Order
from planner.plan import Plan


@dataclass(frozen=True, kw_only=True)
class TokenCounts:
    """Tokens of some micro-batches. All 0 if they are not known."""

    inputs: int = 0
    """of the samples (both completions of a pair), without padding and ghosts. Each once, however many passes use it"""
    padded: int = 0
    """the same with padding and ghosts"""
    squares: int = 0
    """the sum over the samples' documents of the square of their length, for the cost of attention"""
    mismatched: int = 0
    """of the mismatched sequences of `kto`, without padding and ghosts. They are not in `inputs`"""
    mismatched_squares: int = 0

    def __add__(self, other: "TokenCounts") -> "TokenCounts":
        """The tokens of both."""
        return TokenCounts(**{name: count + vars(other)[name] for name, count in vars(self).items()})


class MicroBatch(Protocol):
    """The samples of one forward pass."""

    @property
    def rows(self) -> tuple[int, ...]:
        """The data rows of its samples. A ghost has none, and its weight is zero."""
        ...

    @property
    def position(self) -> int:
        """The first sample's position in the order. It identifies the micro-batch on any worker."""
        ...

    @property
    def content(self) -> Any:
        """The value that the objective or the user's loop gets."""
        ...

    @property
    def token_counts(self) -> TokenCounts:
        """How many tokens it has."""
        ...

    def check_sum(self) -> int:
        """The sum of the samples' checksums, computed from the values in `content`."""
        ...

    def pinned(self) -> Self:
        """A copy in page-locked memory, from which a GPU can copy asynchronously."""
        ...


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """Samples of tokens. A ghost has no rows and one token without loss, so its gradient is zero."""

    rows: tuple[int, ...]
    position: int
    """the first sample's position in the order. It identifies the micro-batch on any worker"""
    inputs: Tensor
    """`(m, T)` int64, on the CPU"""
    labels: Tensor
    """`(m, T)` int64, `NO_LOSS` at tokens without loss"""
    lengths: tuple[int, ...]
    """the rows' lengths without padding. None for a ghost"""

    def pinned(self) -> "TokenBatch":
        """A copy in page-locked memory."""
        return replace(self, inputs=self.inputs.pin_memory(), labels=self.labels.pin_memory())

    @property
    def content(self) -> "TokenBatch":
        """The batch itself, which an objective gets."""
        return self

    @property
    def num_tokens(self) -> int:
        """The number of tokens with loss."""
        return int((self.labels != NO_LOSS).sum())

    @property
    def token_counts(self) -> TokenCounts:
        """How many tokens it has."""
        squares = sum(length * length for length in self.lengths)
        return TokenCounts(inputs=sum(self.lengths), padded=self.inputs.numel(), squares=squares)

    def check_sum(self) -> int:
        """Sum of `planner.data.base.check_sum` over the rows, computed from the tensors. Below 2^64 * m."""
        # Padding lies behind the tokens with loss, so the cut below takes only bytes. A `NO_LOSS` of -100 would wrap to
        # 156.
        lengths = (self.labels != NO_LOSS).sum(dim=1).tolist()
        inputs, labels = self.inputs.numpy().astype(np.uint8), self.labels.numpy().astype(np.uint8)
        total = 0
        for i, row in enumerate(self.rows):
            length = lengths[i]
            total += check_sum_of_parts(row, inputs[i, :length].tobytes(), labels[i, :length].tobytes())
        return total


def collate(rows: Sequence[int], tokens: Sequence[TokenIds], position: int = 0) -> TokenBatch:
    """Pad rows on the right to the longest. A causal model never attends to the padding, which has no loss."""
    # `default=2`: a ghost has one token, the shortest input that passes through the model's collectives.
    longest = max((len(t) for t in tokens), default=2) - 1
    # Any id will do for padding: it is looked up, and then no token attends to it.
    inputs = torch.zeros((max(len(rows), 1), longest), dtype=torch.int64)
    labels = torch.full_like(inputs, NO_LOSS)
    for i, t in enumerate(tokens):
        inputs[i, : len(t) - 1] = torch.from_numpy(t[:-1].astype(np.int64))
        labels[i, : len(t) - 1] = torch.from_numpy(t[1:].astype(np.int64))
    lengths = tuple(len(t) - 1 for t in tokens)
    return TokenBatch(rows=tuple(rows), position=position, inputs=inputs, labels=labels, lengths=lengths)


MakeBatch = Callable[[Any, list[int], int], MicroBatch]
"""(data set, rows, position of the first row) -> micro-batch. Without rows, a ghost"""


def token_batch(dataset: Dataset, rows: list[int], position: int) -> TokenBatch:
    """A micro-batch of rows of a token data set.

    Raises:
        DataError: a row can no longer be read.
    """
    return collate(rows, [dataset.tokens(row) for row in rows], position)


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Loads one worker's share of a global batch."""

    dataset: Any
    order: Order
    plan: Plan
    rank: int
    make_batch: MakeBatch = token_batch
    is_coupled: bool = False
    """whether each sample needs the next sample of its global batch as a partner (the last one needs the first). Then
    `make_batch` gets one more row, the one after its last. Partners do not depend on W, m or A"""

    def load(self, cursor: int) -> list[MicroBatch]:
        """The micro-batches of the optimizer step that begins at position `cursor`, one per round.

        Raises:
            DataError: a row can no longer be read.
        """
        return [
            self._micro_batch(lambda start, stop: self.order.rows(cursor + start, cursor + stop), slot, cursor)
            for slot in self.plan.micro_batches(self.rank)
        ]

    def load_held_out(self) -> list[MicroBatch]:
        """The micro-batches of this worker's held-out samples. The plan's global batch must be all held-out samples."""
        return [self._micro_batch(self.order.held_out_rows, slot, 0) for slot in self.plan.micro_batches(self.rank)]

    def _micro_batch(self, rows_at: Callable[[int, int], NDArray[np.int64]], slot: range, cursor: int) -> MicroBatch:
        rows = [int(row) for row in rows_at(slot.start, slot.stop)]
        if self.is_coupled and rows:
            following = slot.stop % self.plan.global_batch
            rows += [int(row) for row in rows_at(following, following + 1)]
        # Each micro-batch counts as progress, so that the controller takes no slow disk for a hang.
        progress_counter.count_work()
        return self.make_batch(self.dataset, rows, cursor + slot.start)
