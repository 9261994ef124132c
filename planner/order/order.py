"""The endless order of a job's training rows, and its held-out rows.

    position p -> epoch p // num_samples, place p % num_samples
               -> training index (that epoch's permutation, keyed by the seed)
               -> row (the split, which depends only on the number of rows in each set)

A position does not depend on workers. So the seed and a cursor (positions consumed so far) are all that a run needs
to resume in the data.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.errors import DataError
from planner.order.permutation import Permutations
from planner.order.shares import shares

_MAX_POSITION = 2**63 - 1  # positions are int64

# Any two different numbers work. Changing one changes every run's order or split.
_TRAINING = 1
_HELD_OUT = 2
_SPLIT_SEED = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Maps positions of the endless order to data rows.

    Attributes:
        num_rows: rows in the data set, at most 2**40.
        num_held_out: rows kept for evaluation and never trained on. The choice does not depend on the seed, so two
            seeds of one job share an eval set. A larger eval set of the same single set contains a smaller one.
        seed: in [0, 2**64). Another seed gives another order.
        set_rows: rows of each set of a mixture, whose rows follow one another. Rows are held out of each set in
            proportion. Empty for a single set.
        is_apart: whether the held-out rows come from a data set of their own. Then all `num_rows` rows are trained on,
            and the held-out rows are [num_rows, num_rows + num_held_out).

    Raises:
        DataError: a number is out of its range, or no training row is left.
    """

    num_rows: int
    num_held_out: int = 0
    seed: int
    set_rows: tuple[int, ...] = ()
    is_apart: bool = False

    def __post_init__(self) -> None:
        if self.num_held_out < 0:
            raise DataError(f"num_held_out is {self.num_held_out}. Write 0 or more")
        if self.num_samples < 1:
            raise DataError(_none_left(self.num_rows, self.num_held_out))
        assert not self.set_rows or sum(self.set_rows) == self.num_rows
        # Making them checks the sizes and the seed here, not at the first batch.
        self._shuffles()
        self._split()

    @property
    def num_samples(self) -> int:
        """Rows to train on: the length of an epoch in samples."""
        return self.num_rows - self.num_withheld

    @property
    def num_withheld(self) -> int:
        """Rows held out of the data to train on."""
        return 0 if self.is_apart else self.num_held_out

    @property
    def set_held_out(self) -> tuple[int, ...]:
        """Rows held out of each set, exact to one row. A single set counts as one of one."""
        return shares(self.num_withheld, self.set_rows) if self.set_rows else (self.num_withheld,)

    @property
    def set_samples(self) -> tuple[int, ...]:
        """Rows of each set to train on. A single set counts as one of one."""
        sets = zip(self.set_rows or (self.num_rows,), self.set_held_out, strict=True)
        return tuple(rows - held_out for rows, held_out in sets)

    def set_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the set that each row belongs to, from 0. The same shape as `rows`."""
        return np.searchsorted(np.cumsum(self.set_rows or (self.num_rows,)), rows, side="right")

    def rows(self, start: int, stop: int) -> NDArray[np.int64]:
        """The data rows at positions [start, stop) of the endless order.

        Each epoch has its own permutation. A range may cross any number of epoch ends.

        Args:
            start: first position, in samples since the beginning of training.
            stop: one past the last position, below 2**63.

        Returns:
            (stop - start,) row numbers in [0, num_rows).

        Raises:
            DataError: not 0 <= start <= stop < 2**63.
        """
        _check_range("positions", start, stop, _MAX_POSITION)
        epoch, place = np.divmod(np.arange(start, stop, dtype=np.int64), self.num_samples)  # (n,), (n,) int64
        return self._row_of(self._shuffles().at(place, epoch))

    def held_out_rows(self, start: int, stop: int) -> NDArray[np.int64]:
        """The held-out data rows with indices [start, stop). They do not depend on the epoch or the seed.

        Args:
            start: first index.
            stop: one past the last index, at most num_held_out.

        Returns:
            (stop - start,) row numbers in [0, num_rows), or in [num_rows, num_rows + num_held_out) if `is_apart`.

        Raises:
            DataError: not 0 <= start <= stop <= num_held_out.
        """
        _check_range("held-out indices", start, stop, self.num_held_out)
        return self._row_of(self.num_samples + np.arange(start, stop, dtype=np.int64))

    def _row_of(self, split_index: NDArray[np.int64]) -> NDArray[np.int64]:
        # [0, num_samples) are training rows, [num_samples, num_rows) are held out.
        if self.num_withheld == 0:
            return split_index
        if not self.set_rows:
            return self._split().at(split_index, np.zeros_like(split_index))
        held_out, skipped = _held_out_rows(self.set_rows, self.set_held_out)
        index = split_index - self.num_samples
        return np.where(
            index < 0, split_index + np.searchsorted(skipped, split_index, side="right"), held_out[np.maximum(index, 0)]
        )

    def _shuffles(self) -> Permutations:
        return Permutations(size=self.num_samples, seed=self.seed, purpose=_TRAINING)

    def _split(self) -> Permutations:
        return _split(self.num_rows)


def chosen_rows(set_rows: tuple[int, ...], count: int) -> NDArray[np.int64]:
    """The rows to evaluate on of a data set of their own, from each of its sets in proportion.

    They are those that `Order` would hold out. A choice of all rows has them in their order.

    Args:
        set_rows: rows of each set. A single set counts as one of one.
        count: how many rows to choose, at most all.

    Returns:
        (count,) row numbers in [0, sum(set_rows)).
    """
    if count == sum(set_rows):
        return np.arange(count, dtype=np.int64)
    return _held_out_rows(set_rows, chosen_in(set_rows, count))[0]


def chosen_in(set_rows: tuple[int, ...], count: int) -> tuple[int, ...]:
    """How many rows of each set are among `chosen_rows`, exact to one row."""
    return shares(count, set_rows)


def _split(num_rows: int) -> Permutations:
    """The permutation that puts training rows first and held-out rows last."""
    return Permutations(size=num_rows, seed=_SPLIT_SEED, purpose=_HELD_OUT)


@lru_cache(maxsize=8)
def _held_out_rows(set_rows: tuple[int, ...], set_held_out: tuple[int, ...]) -> tuple[NDArray[np.int64], ...]:
    """The held-out rows of a mixture, set by set, and for each of them in rising order the training index after it.

    A list of them, because a permutation for each set would take milliseconds for each batch.
    """
    found, start = [], 0
    for size, count in zip(set_rows, set_held_out, strict=True):
        last = np.arange(size - count, size, dtype=np.int64)
        found.append(start + _split(size).at(last, np.zeros_like(last)))
        start += size
    rows = np.concatenate(found)
    return rows, np.sort(rows) - np.arange(len(rows))


def _none_left(rows: int, held_out: int) -> str:
    """Why no row is left to train on, and what to do. With one row, none can be held out."""
    if rows < 1:
        return "the data has no rows, so there is none to train on. Add data"
    fix = f"Hold out at most {rows - 1}" if rows > 1 else "Hold out none (eval.samples 0)"
    found = f"{rows} rows" if rows > 1 else "1 row"
    return (
        f"the data has {found} and {held_out} {'are' if held_out > 1 else 'is'} held out, so none is left to train on. "
        f"{fix}, or add data"
    )


def _check_range(what: str, start: int, stop: int, limit: int) -> None:
    if not 0 <= start <= stop <= limit:
        raise DataError(
            f"{what} [{start}, {stop}) are not a half-open range within [0, {limit}). "
            f"Ask for 0 <= start <= stop <= {limit}"
        )
