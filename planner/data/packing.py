"""Packs documents into rows by their lengths alone. Pure: the result does not depend on seed or world size."""

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def pack(lengths: NDArray[np.int64], capacity: int) -> tuple[Indices, Indices]:
    """Best fit, longest first: each document goes into the fullest row that still has room for it.

    It uses at most 11/9 of the fewest possible rows, plus 4 (Johnson 1974), and n log n comparisons.

    Args:
        lengths: shape `(n,)`, each in [1, capacity].
        capacity: the length of a row.

    Returns:
        The documents, shape `(n,)`, row by row, in rising order within a row. The start of each row in that array and
        the end of the last one, shape `(rows + 1,)`.
    """
    row_of = np.empty(len(lengths), np.int64)
    # Free tokens -> rows with that many, and the keys in ascending order.
    rows_with: dict[int, list[int]] = {}
    free: list[int] = []
    num_rows = 0
    # Stable, so that documents of equal length have the same order everywhere.
    for document in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[document])
        at = bisect_left(free, length)
        if at == len(free):
            room, row = capacity, num_rows
            num_rows += 1
        else:
            room = free[at]
            row = rows_with[room].pop()
            if not rows_with[room]:
                del rows_with[room], free[at]
        row_of[document] = row
        if left := room - length:
            if left not in rows_with:
                rows_with[left] = []
                insort(free, left)
            rows_with[left].append(row)
    return np.argsort(row_of, kind="stable"), np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=num_rows))])
