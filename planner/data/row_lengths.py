"""Lengths of samples by the lengths of what they are made of. Pure, over arrays."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner.data.base import RowLengths

Integers = NDArray[np.int64]


def part_lengths(ends: Integers, numbers: Integers) -> Integers:
    """The lengths of some parts of a flat array, shape `(n,)`. `ends`: where each part ends, in ascending order."""
    return ends[numbers] - np.where(numbers > 0, ends[numbers - 1], 0)


def runs(starts: Integers, counts: Integers) -> Integers:
    """The numbers `[start, start + count)` of each run, one run after another."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())


def found_in(table: NDArray[np.uint64], values: Integers, side: Literal["left", "right"]) -> Integers:
    """`np.searchsorted` of n values in any order, `(n,)`, in a long ascending table."""
    # In ascending order, one search finds the pages of the table that the last one has read.
    order = np.argsort(values)
    found = np.empty_like(values)
    # As uint64: with any other integer, numpy would convert the whole table first.
    found[order] = np.searchsorted(table, values[order].astype(np.uint64), side=side)
    return found


def row_sums(documents: Integers, counts: Integers) -> RowLengths:
    """The lengths of n rows.

    Args:
        documents: the lengths of all their documents, one row after another.
        counts: how many of them each row has, `(n,)`, each at least 1.
    """
    begins = np.cumsum(counts) - counts
    return RowLengths(np.add.reduceat(documents, begins), np.add.reduceat(documents**2, begins))


def sums_of_sequences(*lengths: Integers) -> RowLengths:
    """The lengths of n samples of one or more sequences, each of one document. `lengths`: `(n,)` for each sequence."""
    stacked = np.stack(lengths)  # (sequences, n)
    return RowLengths(stacked.sum(axis=0), (stacked**2).sum(axis=0))
