"""Counts the samples that the steps of a run used of each set of a mixture."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.order.order import Order


class Miscount(NamedTuple):
    """An epoch that did not use exactly the samples of a set."""

    epoch: int
    set_number: int
    used: int


class SetCounts:
    """Takes the rows of the steps in order, and compares each whole epoch with the sets."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.whole_epochs = 0
        """epochs of which every position was taken"""
        self.miscounts: list[Miscount] = []
        self._used = np.zeros(len(order.set_samples), np.int64)  # in the epoch at hand
        self._next = -1

    @property
    def after(self) -> tuple[int, ...]:
        """Samples of each set in the epoch at hand, which is not complete."""
        return tuple(self._used.tolist())

    def take(self, start: int, rows: NDArray[np.int64]) -> None:
        """Count the rows at positions [start, start + len(rows))."""
        if start != self._next:  # a gap, so this epoch is not counted from its beginning
            self._used[:] = 0
        size, done = self.order.num_samples, 0
        while done < len(rows):
            epoch, place = divmod(start + done, size)
            piece = rows[done : done + size - place]
            self._used += np.bincount(self.order.set_of(piece), minlength=len(self._used))
            done += len(piece)
            if place + len(piece) == size:
                self._finish(epoch)
        self._next = start + len(rows)

    def _finish(self, epoch: int) -> None:
        if int(self._used.sum()) == self.order.num_samples:
            self.whole_epochs += 1
            self.miscounts += [
                Miscount(epoch, number, used)
                for number, (used, wanted) in enumerate(zip(self.after, self.order.set_samples, strict=True))
                if used != wanted
            ]
        self._used[:] = 0
