"""From positions in the order to tensors: one worker's micro-batches of one optimizer step.

Shapes: m samples, T tokens (the longest of the micro-batch).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from planner.base import work_counter
from planner.data.base import Dataset, TokenIds, check_sum_of_parts
from planner.data.samples import NO_LOSS
from planner.order.order import Order
from planner.plan import Plan


class MicroBatch(Protocol):
    """What enters one forward pass."""

    @property
    def rows(self) -> tuple[int, ...]:
        """The samples in it; a ghost has none, and counts for nothing."""
        ...

    @property
    def position(self) -> int:
        """Of its first sample in the order: names the micro-batch, whoever computes it."""
        ...

    @property
    def content(self) -> Any:
        """What the one who computes it gets."""
        ...

    def check_sum(self) -> int:
        """The sum of its samples' checksums, as they stand in `content`."""
        ...

    def pinned(self) -> Self:
        """The same in page-locked memory, from which a GPU copies while the CPU goes on."""
        ...


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """Samples of tokens. A ghost has no rows and one token without loss: its gradient is zero."""

    rows: tuple[int, ...]
    position: int
    """of its first sample in the order: names the micro-batch, whoever computes it"""
    inputs: Tensor
    """`(m, T)` int64, on the CPU"""
    labels: Tensor
    """`(m, T)` int64, `NO_LOSS` where no loss is borne"""

    def pinned(self) -> "TokenBatch":
        """The same in page-locked memory."""
        return replace(self, inputs=self.inputs.pin_memory(), labels=self.labels.pin_memory())

    @property
    def content(self) -> "TokenBatch":
        """What an objective gets."""
        return self

    @property
    def num_tokens(self) -> int:
        """Loss-bearing tokens."""
        return int((self.labels != NO_LOSS).sum())

    def check_sum(self) -> int:
        """Sum of `planner.data.base.check_sum` over the rows as they stand in the tensors, below 2^64 * m."""
        lengths = (self.labels != NO_LOSS).sum(dim=1).tolist()
        inputs, labels = self.inputs.numpy().astype(np.uint8), self.labels.numpy().astype(np.uint8)
        total = 0
        for i, row in enumerate(self.rows):
            length = lengths[i]
            total += check_sum_of_parts(row, inputs[i, :length].tobytes(), labels[i, :length].tobytes())
        return total


def collate(rows: Sequence[int], tokens: Sequence[TokenIds], position: int = 0) -> TokenBatch:
    """Pad on the right to the longest row; a causal model never looks there, and the padding bears no loss."""
    longest = max((len(t) for t in tokens), default=2) - 1
    inputs = torch.zeros((max(len(rows), 1), longest), dtype=torch.int64)
    labels = torch.full_like(inputs, NO_LOSS)
    for i, t in enumerate(tokens):
        inputs[i, : len(t) - 1] = torch.from_numpy(t[:-1].astype(np.int64))
        labels[i, : len(t) - 1] = torch.from_numpy(t[1:].astype(np.int64))
    return TokenBatch(rows=tuple(rows), position=position, inputs=inputs, labels=labels)


MakeBatch = Callable[[Any, list[int], int], MicroBatch]
"""(data set, rows, position of the first one) -> micro-batch; no rows: a ghost"""


def token_batch(dataset: Dataset, rows: list[int], position: int) -> TokenBatch:
    """Rows of a data set of tokens.

    Raises:
        DataError: one cannot be read any more.
    """
    return collate(rows, [dataset.tokens(row) for row in rows], position)


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Reads one worker's part of a global batch."""

    dataset: Any
    order: Order
    plan: Plan
    rank: int
    make_batch: MakeBatch = token_batch
    is_coupled: bool = False
    """whether each sample needs the next one of its global batch beside it, the last one the first: `make_batch` then
    gets one row more, which follows the others, and neither W, m nor A decide who is whose partner"""

    def load(self, cursor: int) -> list[MicroBatch]:
        """The micro-batches of the optimizer step that begins at position `cursor`: one per round.

        Raises:
            DataError: a row cannot be read any more.
        """
        return [
            self._micro_batch(lambda start, stop: self.order.rows(cursor + start, cursor + stop), slot, cursor)
            for slot in self.plan.micro_batches(self.rank)
        ]

    def load_held_out(self) -> list[MicroBatch]:
        """The micro-batches of this worker's held-out samples, the plan's global batch being all of them."""
        return [self._micro_batch(self.order.held_out_rows, slot, 0) for slot in self.plan.micro_batches(self.rank)]

    def _micro_batch(self, rows_at: Callable[[int, int], NDArray[np.int64]], slot: range, cursor: int) -> MicroBatch:
        rows = [int(row) for row in rows_at(slot.start, slot.stop)]
        if self.is_coupled and rows:
            following = slot.stop % self.plan.global_batch
            rows += [int(row) for row in rows_at(following, following + 1)]
        work_counter.count_work()
        return self.make_batch(self.dataset, rows, cursor + slot.start)
