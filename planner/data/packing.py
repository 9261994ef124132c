"""Several documents in a row: which ones, by their lengths alone. Pure, and the same for every seed and world size."""

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def pack(lengths: NDArray[np.int64], capacity: int) -> tuple[Indices, Indices]:
    """Best fit, longest first: each document goes into the fullest row that it still fits into.

    `lengths` has shape `(n,)`, each in [1, capacity]. Gives the documents, shape `(n,)`, row by row and within a row in
    the order of their numbers; and where in that each row begins, and where the last one ends, shape `(rows + 1,)`.
    At most 11/9 of the fewest possible rows, and 4 more (Johnson 1974). Takes n log n comparisons.
    """
    row_of = np.empty(len(lengths), np.int64)
    # Free tokens -> rows that have so many, and those numbers of free tokens, ascending.
    rows_with: dict[int, list[int]] = {}
    free: list[int] = []
    num_rows = 0
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
