"""Counts the samples that a run used of each set of a mixture. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.base.text import counted
from planner.data.sample_sets import SetRows
from planner.order.order import Order


@dataclass(frozen=True, kw_only=True)
class SetUse:
    """How many samples of one set of a mixture the steps used."""

    name: str
    """path, configuration and split"""
    samples: int
    """of the set in an epoch: its rows without those that are held out"""
    whole_epochs: int
    """epochs that the steps completed. Each used all samples of the set once, or there is a finding"""
    after: int
    """samples of the set in the epoch that is not complete"""


class SetCounts:
    """Takes the rows of the steps in order, and compares each whole epoch with the sets."""

    def __init__(self, sets: Sequence[SetRows], order: Order) -> None:
        self.sets, self.order = tuple(sets), order
        self._used = np.zeros(len(sets), np.int64)
        """samples of each set in the epoch at hand"""
        self._next = -1
        self._whole_epochs = 0
        self.findings: list[str] = []

    def take(self, start: int, rows: NDArray[np.int64]) -> None:
        """Count the rows at positions [start, start + len(rows)) of the order."""
        if start != self._next:  # a gap, so this epoch is not counted from its beginning
            self._used[:] = 0
        size, done = self.order.num_samples, 0
        while done < len(rows):
            epoch, place = divmod(start + done, size)
            piece = rows[done : done + size - place]
            self._used += np.bincount(self.order.set_of(piece), minlength=len(self._used))
            done += len(piece)
            if place + len(piece) == size:
                self._finish(epoch, is_whole=int(self._used.sum()) == size)
        self._next = start + len(rows)

    def _finish(self, epoch: int, *, is_whole: bool) -> None:
        if is_whole:
            self._whole_epochs += 1
            self.findings += [
                f"epoch {epoch} used {counted(int(used), 'sample')} of {each.name}, which has {wanted}"
                for each, used, wanted in zip(self.sets, self._used, self.order.set_samples, strict=True)
                if used != wanted
            ]
        self._used[:] = 0

    @property
    def uses(self) -> tuple[SetUse, ...]:
        """What the steps used, set by set."""
        return tuple(
            SetUse(name=each.name, samples=samples, whole_epochs=self._whole_epochs, after=int(after))
            for each, samples, after in zip(self.sets, self.order.set_samples, self._used, strict=True)
        )
