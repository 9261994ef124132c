"""The keyed permutation: a bijection, random access, and as good as a fair shuffle by every statistic tried.

A statistic here is a chi-square with its degrees of freedom, read as z = (chi2 - df) / sqrt(2 df). Seeds are
fixed, so a test passes always or never. A fair shuffle exceeds MAX_Z for one choice of seeds in 500 at one
degree of freedom (size 2), in 250,000 at 40, in millions at hundreds. Each statistic is shown to reject a
weakened network.
"""

import dataclasses
import itertools
import math
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import DataError
from planner.order import permutation
from planner.order.permutation import MAX_SIZE, FeistelGrid, Permutations

MAX_Z = 6.0
AWKWARD = [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 97, 255, 256, 257, 1000, 4095, 4096, 4097, 10007, 65537]


def keys(*, seeds=0, epochs=0):
    """The keys of many seeds and epochs at once, (n,)."""
    state = np.zeros(1, np.uint64)
    for word in (seeds, 0, epochs):
        state = permutation._absorb(state, word)
    return state


def shuffles(size, key, *, grid=None, num_rounds=None):
    """One whole shuffle of [0, size) for each key, (num_keys, size)."""
    grid = grid or FeistelGrid.holding(size)
    if num_rounds is not None:
        grid = dataclasses.replace(grid, num_rounds=num_rounds)
    index = np.tile(np.arange(size, dtype=np.uint64), len(key))  # (num_keys * size,)
    return permutation._permuted(index, np.repeat(key, size), grid).astype(np.int64).reshape(len(key), size)


def z_score(chi2, df):
    return (chi2 - df) / math.sqrt(2 * df)


def z_uniform(counts):
    """Counts of equally likely cells, (cells,)."""
    expected = counts.sum() / counts.size
    return z_score(float(((counts - expected) ** 2).sum() / expected), counts.size - 1)


def z_places(table):
    """Which value stands at which place. Permutation matrices leave (size - 1)**2 degrees of freedom."""
    num, size = table.shape
    cells = np.bincount((np.arange(size) * size + table).ravel(), minlength=size**2)
    chi2 = float(((cells - num / size) ** 2).sum() / (num / size)) * (size - 1) / size
    return z_score(chi2, (size - 1) ** 2)


def z_pair(table, i, j):
    """Which ordered pair of values stands at places i and j."""
    size = table.shape[1]
    cells = np.bincount(table[:, i] * size + table[:, j], minlength=size**2).reshape(size, size)
    return z_uniform(cells[~np.eye(size, dtype=bool)])


def z_pairs(table):
    """The worst over some pairs of places: neighbours in a row and in a column of the grid, and the ends."""
    size = table.shape[1]
    places = {(0, 1), (size - 2, size - 1), (0, size - 1), (0, min(4, size - 1)), (size // 2, size // 2 - 1)}
    return max(z_pair(table, i, j) for i, j in places if i != j)


def z_orders(table):
    """Which of the size! orders it is."""
    size = table.shape[1]
    codes = table @ size ** np.arange(size)
    every = np.array(list(itertools.permutations(range(size)))) @ size ** np.arange(size)
    return z_uniform(np.array([(codes == code).sum() for code in every]))


def z_lag(table, lag):
    """The difference modulo size of the values at places x and x + lag: any but 0, equally often."""
    size = table.shape[1]
    counts = np.bincount(((np.roll(table, -lag, axis=1) - table) % size).ravel(), minlength=size)
    return z_uniform(counts[1:])


def z_between(table):
    """The difference modulo size of the values at one place in consecutive shuffles: any, equally often."""
    size = table.shape[1]
    return z_uniform(np.bincount(((table[1:] - table[:-1]) % size).ravel(), minlength=size))


def z_correlation(x, y):
    """The linear correlations of the rows of x and y, (num, size), as a chi-square: size * r**2 each."""
    size = x.shape[1]
    centre, variance = (size - 1) / 2, (size**2 - 1) / 12
    r = ((x - centre) * (y - centre)).mean(axis=1) / variance
    return z_score(float((size * r**2).sum()), len(r))


@pytest.mark.parametrize("size", AWKWARD)
def test_bijection(size):
    """Every index goes somewhere else than every other, inside [0, size), for several seeds and epochs."""
    for row in shuffles(size, keys(seeds=np.arange(3))):
        assert np.array_equal(np.sort(row), np.arange(size))


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**62))
def test_bijection_everywhere(size, seed, epoch):
    """Any size, seed and epoch gives a bijection."""
    index = np.arange(size)
    there = Permutations(size=size, seed=seed).at(index, np.full(size, epoch))
    assert np.array_equal(np.sort(there), index)


@given(size=st.integers(10**6, MAX_SIZE), seed=st.integers(0, 2**64 - 1), data=st.data())
def test_large_sizes_stay_inside_and_apart(size, seed, data):
    """At sizes too large to walk through, a window's indices stay inside [0, size) and never meet."""
    start = data.draw(st.integers(0, size - 500))
    index = np.arange(start, start + 500)
    there = Permutations(size=size, seed=seed).at(index, np.zeros(500, np.int64))
    assert there.min() >= 0
    assert there.max() < size
    assert len(np.unique(there)) == 500


@pytest.mark.parametrize("size", [1, 5, 17, 1000, 4097])
def test_random_access_agrees_with_bulk(size):
    """One index asked for alone, or in any company of indices and epochs, goes where it goes in the bulk."""
    family = Permutations(size=size, seed=7, purpose=3)
    rng = np.random.default_rng(0)
    index, epoch = rng.integers(0, size, 300), rng.integers(0, 5, 300)
    bulk = np.stack([family.at(np.arange(size), np.full(size, e)) for e in range(5)])
    assert np.array_equal(family.at(index, epoch), bulk[epoch, index])
    alone = [family.at(index[k : k + 1], epoch[k : k + 1])[0] for k in range(20)]
    assert alone == bulk[epoch, index][:20].tolist()


def test_the_tests_keys_are_the_products():
    """The helper that makes many keys at once makes the very keys of `Permutations`."""
    table = shuffles(97, keys(seeds=np.arange(4)))
    for seed in range(4):
        assert np.array_equal(Permutations(size=97, seed=seed).at(np.arange(97), np.zeros(97, int)), table[seed])


@pytest.mark.parametrize("over", ["seeds", "epochs"])
@pytest.mark.parametrize("size", range(2, 13))
def test_small_sizes_are_uniform(size, over):
    """Over seeds and over epochs every value at a place, and every pair at two places, is as frequent."""
    table = shuffles(size, keys(**{over: np.arange(10_000)}))
    assert z_places(table) < MAX_Z
    assert z_pairs(table) < MAX_Z


@pytest.mark.parametrize("size", range(2, 13))
def test_small_sizes_need_their_rounds(size):
    """The same statistic rejects a network of three rounds."""
    assert z_pairs(shuffles(size, keys(seeds=np.arange(10_000)), num_rounds=3)) > MAX_Z


@pytest.mark.parametrize("over", ["seeds", "epochs"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_orders_appear_equally_often(size, over):
    """Each of the size! orders appears, as often as any other."""
    table = shuffles(size, keys(**{over: np.arange(20_000)}))
    assert len(np.unique(table, axis=0)) == math.factorial(size)
    assert z_orders(table) < MAX_Z


@pytest.mark.parametrize("size", [4, 5])
def test_orders_need_their_rounds(size):
    """The same statistic rejects a network of four rounds."""
    assert z_orders(shuffles(size, keys(seeds=np.arange(20_000)), num_rounds=4)) > MAX_Z


def odd_share(table):
    """The share of odd permutations: those with an odd number of inversions."""
    above = table[:, :, None] > table[:, None, :]  # (num, size, size)
    inversions = (above & np.triu(np.ones(above.shape[1:], bool), 1)).sum(axis=(1, 2))
    return (inversions % 2).mean()


@pytest.mark.parametrize("size", [2, 3, 8, 9, 15, 16, 36])
def test_half_of_the_orders_are_odd(size):
    """Even and odd permutations are equally frequent."""
    assert abs(odd_share(shuffles(size, keys(seeds=np.arange(4000)))) - 0.5) < MAX_Z * 0.5 / math.sqrt(4000)


def test_odd_sides_reach_half_of_the_orders():
    """The reason for the grid's even side: 3 x 3 cells never give an odd permutation."""
    grid = FeistelGrid(size=9, a=3, b=3, num_rounds=24)
    assert odd_share(shuffles(9, keys(seeds=np.arange(500)), grid=grid)) == 0


LARGE = [1000, 4096, 10007]


@pytest.mark.parametrize("size", LARGE)
def test_neighbours_are_unrelated(size):
    """Places 1, 2, a row and a row and a place apart hold values as far apart as chance has it."""
    table = shuffles(size, keys(seeds=np.arange(40)))
    a = FeistelGrid.holding(size).a
    for lag in (1, 2, a - 1, a, a + 1):
        assert z_lag(table, lag) < MAX_Z
        assert z_correlation(table, np.roll(table, -lag, axis=1)) < MAX_Z


@pytest.mark.parametrize("size", LARGE)
def test_neighbours_need_their_rounds(size):
    """The difference statistic rejects a network of four rounds, the linear correlation one of three."""
    key = keys(seeds=np.arange(40))
    assert z_lag(shuffles(size, key, num_rounds=4), 1) > MAX_Z
    weak = shuffles(size, key, num_rounds=3)
    assert z_correlation(weak, np.roll(weak, -1, axis=1)) > MAX_Z


@pytest.mark.parametrize("over", ["seeds", "epochs"])
@pytest.mark.parametrize("size", LARGE)
def test_neighbouring_seeds_and_epochs_are_unrelated(size, over):
    """What one epoch or seed puts at a place says nothing about what the next one puts there."""
    table = shuffles(size, keys(**{over: np.arange(40)}))
    assert z_between(table) < MAX_Z
    assert z_correlation(table[1:], table[:-1]) < MAX_Z


@pytest.mark.parametrize("size", LARGE)
def test_a_rotated_epoch_is_noticed(size):
    """The same statistics reject one shuffle that each epoch merely rotates."""
    table = (shuffles(size, keys(seeds=1)) + np.arange(40)[:, None]) % size
    assert z_between(table) > MAX_Z
    assert z_correlation(table[1:], table[:-1]) > MAX_Z


def test_windows_at_a_billion_are_uniform():
    """The first million places of a billion fill 1000 equal parts of it evenly."""
    index = np.arange(10**6)
    there = Permutations(size=10**9, seed=5).at(index, np.zeros_like(index))
    # A window of n of N without replacement varies by (1 - n/N) less; at n/N = 0.001 that is not seen.
    assert abs(z_uniform(np.bincount(there // 10**6, minlength=1000))) < MAX_Z


def test_purposes_are_apart():
    """Another purpose gives another order for the same seed and epoch."""
    index, epoch = np.arange(1000), np.zeros(1000, np.int64)
    first, second = (Permutations(size=1000, seed=1, purpose=p).at(index, epoch) for p in (1, 2))
    assert (first == second).mean() < 0.02


# (size, seed, purpose, epoch) -> where five indices, evenly spread over [0, size) with both ends, go
GOLDEN = {
    (1, 0, 0, 0): [0],
    (2, 1, 0, 7): [1, 0],
    (5, 2**64 - 1, 0, 3): [4, 3, 2, 1, 0],
    (16, 0, 0, 0): [13, 9, 0, 6, 12],
    (97, 42, 1, 1): [28, 12, 23, 25, 61],
    (10007, 42, 2, 2**40): [2063, 8682, 821, 3241, 2799],
    (65537, 0, 2**64 - 1, 0): [38819, 23638, 55478, 2143, 421],
    (10**9, 1, 1, 0): [50144452, 231939703, 437403801, 39926185, 447430033],
    (2**40, 2**63, 1, 2**62): [101418890029, 1091419250289, 746265729007, 106502672255, 829602894029],
}


def test_golden_values():
    """The order of every run ever made: these numbers must never change."""
    for (size, seed, purpose, epoch), expected in GOLDEN.items():
        index = np.array([k * (size - 1) // max(1, len(expected) - 1) for k in range(len(expected))])
        there = Permutations(size=size, seed=seed, purpose=purpose).at(index, np.full(len(index), epoch))
        assert there.tolist() == expected


@pytest.mark.parametrize("size", [0, -1, MAX_SIZE + 1])
def test_sizes_out_of_range_are_refused(size):
    """No row, or more than 2**40, is refused with the number."""
    with pytest.raises(DataError, match=str(size)):
        Permutations(size=size, seed=0)


@pytest.mark.parametrize("word", [-1, 2**64])
def test_words_out_of_range_are_refused(word):
    """A seed or a purpose that does not fit 64 bits is refused, not folded."""
    with pytest.raises(DataError, match="seed"):
        Permutations(size=5, seed=word)
    with pytest.raises(DataError, match="purpose"):
        Permutations(size=5, seed=0, purpose=word)


@given(size=st.integers(1, MAX_SIZE))
def test_the_grid_holds_the_size_and_little_more(size):
    """A grid has room for every index, sides that the arithmetic serves, and an excess below one row."""
    grid = FeistelGrid.holding(size)
    assert grid.a % 2 == 0
    assert max(grid.a, grid.b) < 2**21
    assert size <= grid.a * grid.b < size + max(grid.a, 16)
    assert grid.num_rounds >= 8


def test_a_trillion_costs_no_memory():
    """A thousand places of 2**40 are found in less than a megabyte."""
    index = np.arange(MAX_SIZE - 1024, MAX_SIZE)
    family = Permutations(size=MAX_SIZE, seed=1)
    tracemalloc.start()
    family.at(index, np.zeros_like(index))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2**20


@pytest.mark.process
def test_the_room_stays_pure():
    """`import planner` loads no numpy, and the order room adds numpy and nothing else of weight."""
    code = (
        "import sys, planner; assert 'numpy' not in sys.modules; import planner.order.order; "
        "assert not {'torch', 'ray', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
