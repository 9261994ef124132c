"""How long the samples of rows on demand are. Found once on a machine by tokenizing all rows, then mapped.

Only the lengths are kept, piece by piece. So a start that was stopped continues with the piece that it was at.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from planner.data.base import RowLengths
from planner.data.sample_cache import LENGTHS, MOST_PIECES, cached
from planner.data.shared_array import SharedArray
from planner.plan.plan import ceil_div

# Rows of a piece at least: about a minute of one core, for conversations of 1 kB.
_LEAST_ROWS = 2**16


@dataclass(frozen=True, kw_only=True, eq=False)
class LengthsPiece:
    """The lengths of consecutive samples. Loader processes map it, and it is kept on the machine's disk."""

    tokens: SharedArray
    """int64: `RowLengths.tokens`"""
    squares: SharedArray
    """int64: `RowLengths.squares`"""

    @property
    def arrays(self) -> dict[str, SharedArray]:
        """The arrays by their names."""
        return {"tokens": self.tokens, "squares": self.squares}


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptLengths:
    """The lengths of a set's samples."""

    pieces: tuple[LengthsPiece, ...]
    piece_size: int
    """samples of each piece. The last one may have fewer"""

    def of(self, samples: NDArray[np.int64]) -> RowLengths:
        """The lengths of samples by their numbers, shape `(n,)`."""
        of_piece, places = np.divmod(samples, self.piece_size)
        found = RowLengths(np.empty_like(samples), np.empty_like(samples))
        for number in np.unique(of_piece):
            chosen, piece = of_piece == number, self.pieces[number]
            found.tokens[chosen] = piece.tokens.array[places[chosen]]
            found.squares[chosen] = piece.squares.array[places[chosen]]
        return found

    @property
    def digest(self) -> str:
        """64 hex digits over all lengths. How they are cut into pieces does not matter."""
        digest = hashlib.sha256(b"lengths 1 ")
        for name in ("tokens", "squares"):
            for piece in self.pieces:
                digest.update(piece.arrays[name].array.data)
        return digest.hexdigest()


def keep_lengths(
    facts: tuple[object, ...],
    num_bytes: int,
    num_rows: int,
    samples_per_row: int,
    measure: Callable[[range], LengthsPiece],
    waits: Callable[[], None],
) -> KeptLengths:
    """The lengths of all samples, from this machine's cache or by `measure`.

    Args:
        facts: everything that the samples depend on, except this code.
        num_bytes: size of the files that hold the rows. Lengths of small data are not cached.
        num_rows: the rows of the set.
        samples_per_row: how many samples each of them gives.
        measure: finds the lengths of the samples of consecutive rows. Its errors are not caught.
        waits: called repeatedly while another process measures, to show that this process is alive.
    """
    size = max(_LEAST_ROWS, ceil_div(num_rows, MOST_PIECES))
    pieces = []
    for start in range(0, num_rows, size):
        rows = range(start, min(start + size, num_rows))
        key = ("lengths", *facts, rows.start, rows.stop)
        make = partial(measure, rows)
        pieces.append(cached(key, num_bytes, make, waits, classes=(LengthsPiece,), folder=LENGTHS))
    return KeptLengths(pieces=tuple(pieces), piece_size=size * samples_per_row)
