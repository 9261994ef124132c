"""From positions in the order to tensors: one worker's micro-batches of one optimizer step.

Shapes: m samples, T tokens (the longest of the micro-batch).
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from planner.data import Dataset, check_sum_of_parts
from planner.data.dataset import TokenIds
from planner.order.order import Order
from planner.plan import Plan

NO_LOSS = -100
"""the label that bears no loss (torch's default `ignore_index`)"""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What enters one forward pass. A ghost has no rows and one token without loss: its gradient is zero."""

    rows: tuple[int, ...]
    position: int
    """of its first sample in the order: names the micro-batch, whoever computes it"""
    inputs: Tensor
    """`(m, T)` int64, on the CPU"""
    labels: Tensor
    """`(m, T)` int64, `NO_LOSS` where no loss is borne"""

    @property
    def num_tokens(self) -> int:
        """Loss-bearing tokens."""
        return int((self.labels != NO_LOSS).sum())

    def check_sum(self) -> int:
        """Sum of `planner.data.check_sum` over the rows as they stand in the tensors, below 2^64 * m."""
        lengths = (self.labels != NO_LOSS).sum(dim=1).tolist()
        inputs, labels = self.inputs.numpy().astype(np.uint8), self.labels.numpy().astype(np.uint8)
        total = 0
        for i, row in enumerate(self.rows):
            length = lengths[i]
            total += check_sum_of_parts(row, inputs[i, :length].tobytes(), labels[i, :length].tobytes())
        return total


def collate(rows: Sequence[int], tokens: Sequence[TokenIds], position: int = 0) -> MicroBatch:
    """Pad on the right to the longest row; a causal model never looks there, and the padding bears no loss."""
    longest = max((len(t) for t in tokens), default=2) - 1
    inputs = torch.zeros((max(len(rows), 1), longest), dtype=torch.int64)
    labels = torch.full_like(inputs, NO_LOSS)
    for i, t in enumerate(tokens):
        inputs[i, : len(t) - 1] = torch.from_numpy(t[:-1].astype(np.int64))
        labels[i, : len(t) - 1] = torch.from_numpy(t[1:].astype(np.int64))
    return MicroBatch(rows=tuple(rows), position=position, inputs=inputs, labels=labels)


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Reads one worker's part of a global batch."""

    dataset: Dataset
    order: Order
    plan: Plan
    rank: int

    def load(self, cursor: int) -> list[MicroBatch]:
        """The micro-batches of the optimizer step that begins at position `cursor`: one per round.

        Raises:
            DataError: a row cannot be read any more.
        """
        slots = self.plan.micro_batches(self.rank)
        return [
            self._micro_batch(self.order.rows(cursor + slot.start, cursor + slot.stop), cursor + slot.start)
            for slot in slots
        ]

    def load_held_out(self) -> list[MicroBatch]:
        """The micro-batches of this worker's held-out samples, the plan's global batch being all of them."""
        return [
            self._micro_batch(self.order.held_out_rows(slot.start, slot.stop), slot.start)
            for slot in self.plan.micro_batches(self.rank)
        ]

    def _micro_batch(self, rows: NDArray[np.int64], position: int) -> MicroBatch:
        numbers = [int(row) for row in rows]
        return collate(numbers, [self.dataset.tokens(row) for row in numbers], position)


class Prefetcher:
    """Loads one step ahead on a thread. It never moves the cursor: the loop says which step it wants."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="planner-load")

    def start(self, cursor: int) -> "Future[list[MicroBatch]]":
        """Begin to load the step at `cursor`."""
        return self._thread.submit(self._loader.load, cursor)

    def close(self) -> None:
        """Wait for the load under way and end the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)
