"""Keyed bijections of [0, N) with random access: element i of a shuffle, without computing the whole shuffle.

    index -> (left, right) on a grid of a * b >= N cells -> rounds of a Feistel network -> index
    outside [0, N)? apply the network again (cycle walking)

Sources: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002), for the generalised Feistel
network over a * b and for cycle walking. Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators" (OOPSLA 2014), for splitmix64 and its finaliser (David Stafford's variant 13).

This is a shuffle, not a cipher: its guarantees are statistical. All arithmetic is on uint64 arrays and wraps, so
the values are equal on every platform and for every numpy. Changing any constant here changes the order of every
run ever made. `tests/order/test_permutation.py` freezes some values.
"""

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.errors import DataError

U64: TypeAlias = NDArray[np.uint64]

# The grid's left side is about sqrt(2**40) = 2**20, safely below the limit 2**21 of `_scaled`.
MAX_SIZE = 2**40
MAX_WORD = 2**64  # seeds, purposes and epochs are 64-bit words

# A side of 2 mixes slowly: on a 4 x 2 grid one order is still 0.5% too frequent after 32 rounds (computed).
_MIN_SIDE = 4
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, splitmix64's increment
_STAFFORD_1 = np.uint64(0xBF58476D1CE4E5B9)
_STAFFORD_2 = np.uint64(0x94D049BB133111EB)
_SCALE_BITS = np.uint64(43)
_DROPPED_BITS = np.uint64(21)


@dataclass(frozen=True, kw_only=True, slots=True)
class Permutations:
    """A family of bijections of [0, size), one for each epoch.

    Attributes:
        size: N, from 1 to `MAX_SIZE`.
        seed: in [0, 2**64). Another seed gives another family.
        purpose: in [0, 2**64). It separates the families of one seed (training order, held-out split).

    Raises:
        DataError: a number is out of its range.
    """

    size: int
    seed: int
    purpose: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_SIZE:
            raise DataError(
                f"cannot order {self.size} rows: planner orders from 1 to {MAX_SIZE} (2**40). "
                "Check the path of the data set, or split the data into several jobs"
            )
        for name, word in (("seed", self.seed), ("purpose", self.purpose)):
            if not 0 <= word < MAX_WORD:
                raise DataError(f"{name} {word} is outside [0, 2**64). Write a number that fits 64 bits")

    def at(self, index: NDArray[np.int64], epoch: NDArray[np.int64]) -> NDArray[np.int64]:
        """Each index permuted by the permutation of its epoch.

        Args:
            index: (n,) in [0, size). Not checked here.
            epoch: (n,) 0 or more.

        Returns:
            (n,) in [0, size). Within one epoch, a bijection of index.
        """
        key = _absorb(_absorb(_absorb(np.zeros(1, np.uint64), self.seed), self.purpose), epoch)  # (n,) uint64
        return _permuted(index.astype(np.uint64), key, FeistelGrid.holding(self.size)).astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class FeistelGrid:
    """The network's domain: cells (left, right) in [0, a) x [0, b), of which the first `size` are used."""

    size: int
    a: int
    b: int
    num_rounds: int

    @classmethod
    def holding(cls, size: int) -> "FeistelGrid":
        """The grid for [0, size).

        a = ceil(sqrt N) made even, b = ceil(N / a). Fewer than a cells lie outside [0, N), so cycle walking is rare
        for a large N. a is even because a rotation of an odd row is an even permutation: a 3 x 3 grid would reach
        only half of all orders.
        """
        root = math.isqrt(size - 1) + 1  # ceil(sqrt N)
        a = max(_MIN_SIDE, root + root % 2)
        b = max(_MIN_SIDE, -(-size // a))
        return cls(size=size, a=a, b=b, num_rounds=_num_rounds(min(a, b)))


def _num_rounds(side: int) -> int:
    # Two rounds bring the joint distribution of any two positions closer to uniform by a factor 1/side: total
    # variation is about side**(1 - r/2) after r rounds with ideal round functions (computed for 4 x 2, 4 x 4, 6 x 4
    # and 8 x 8, assumed beyond). This keeps it below 1e-5: 24 rounds at side 4, 9 at side 64, 8 above.
    return 8 + 64 // side


def _permuted(index: U64, key: U64, grid: FeistelGrid) -> U64:
    """Cycle walking: apply the network to each index until the result is in [0, size)."""
    cell = _feistel(index, key, grid)
    while (outside := np.flatnonzero(cell >= np.uint64(grid.size))).size:
        cell[outside] = _feistel(cell[outside], key[outside], grid)  # (num_outside,)
    return cell


def _feistel(cell: U64, key: U64, grid: FeistelGrid) -> U64:
    """The Feistel network: a bijection of [0, a * b) for each key. `cell` and `key` are (n,)."""
    a, b = np.uint64(grid.a), np.uint64(grid.b)
    right, left = np.divmod(cell, a)
    round_key = key
    for i in range(grid.num_rounds):
        round_key = round_key + _GOLDEN  # not in place: the array belongs to the caller
        # even rounds: left += F(right) mod a, odd rounds: right += F(left) mod b
        if i % 2 == 0:
            left = _add_modulo(left, _scaled(_round(right, round_key), a), a)
        else:
            right = _add_modulo(right, _scaled(_round(left, round_key), b), b)
    return left + a * right


def _round(half: U64, round_key: U64) -> U64:
    # The round keys of one epoch are an arithmetic sequence. The inner mix decorrelates them (this is splitmix64).
    return _mix(half ^ _mix(round_key))


def _scaled(word: U64, side: np.uint64) -> U64:
    # floor(w * side / 2**43), w the word's high 43 bits: uniform on [0, side) up to side / 2**43 < 2**-22. It avoids
    # the slow division of word % side. side < 2**21, so the product fits 64 bits.
    return ((word >> _DROPPED_BITS) * side) >> _SCALE_BITS


def _add_modulo(x: U64, y: U64, modulus: np.uint64) -> U64:
    total = x + y  # < 2 * modulus
    # A difference below zero wraps to a huge number, so the minimum is `total`.
    reduced: U64 = np.minimum(total, total - modulus)
    return reduced


def _absorb(state: U64, word: int | NDArray[np.int64]) -> U64:
    # A bijection of the word for each state, so two epochs of one seed never share a key.
    return _mix(state ^ _mix(np.asarray(word, np.uint64).reshape(-1) + _GOLDEN)) + _GOLDEN


def _mix(word: U64) -> U64:
    """The splitmix64 finaliser: a bijection of 64-bit words in which each input bit affects every output bit."""
    word = (word ^ (word >> np.uint64(30))) * _STAFFORD_1
    word = (word ^ (word >> np.uint64(27))) * _STAFFORD_2
    return word ^ (word >> np.uint64(31))
