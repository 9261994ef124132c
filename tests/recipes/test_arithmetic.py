"""The rules of equal splits, each against a simulation that moves rows one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.recipes.split import (
    accumulation_for,
    dropped_by_slicing,
    groups_cut,
    nearest_counts,
    nearest_multiple,
    repeats_of_even_batches,
    used_by_slicing,
)

batches = st.integers(1, 300)
few = st.integers(1, 17)


def sliced(rows, parts):
    """Equal slices in order. The remainder is in none."""
    size = len(rows) // parts
    return [rows[size * part : size * (part + 1)] for part in range(parts)]


@given(batches, few, few)
def test_what_slicing_drops_is_what_no_gpu_computes(batch, accumulation, gpus):
    """Slicing is into accumulation steps, then ranks. Used and dropped positions are all positions, each once."""
    computed = [
        row for step in sliced(list(range(batch)), accumulation) for share in sliced(step, gpus) for row in share
    ]
    dropped = [row for first, end in dropped_by_slicing(batch, accumulation, gpus) for row in range(first, end)]
    assert sorted(computed + dropped) == list(range(batch))
    assert len(computed) == used_by_slicing(batch, accumulation, gpus)


def test_the_positions_of_the_document():
    """B=64 A=2 W=6 drops 30, 31, 62 and 63. B=64 A=3 drops one even on one GPU."""
    assert dropped_by_slicing(64, 2, 6) == [(30, 32), (62, 64)]
    assert dropped_by_slicing(64, 3, 1) == [(63, 64)]
    assert dropped_by_slicing(64, 2, 4) == []


def visits(num_rows, gpus, micro):
    """The rows read in an epoch: batch k goes to GPU k mod W, and rows from the start fill up until all are even."""
    if gpus == 1:
        return num_rows
    rows = list(range(num_rows))
    batches = [rows[at : at + micro] for at in range(0, num_rows, micro)]
    refill = iter(rows * (gpus * micro + 1))
    while len(batches[-1]) < micro:
        batches[-1].append(next(refill))
    while len(batches) % gpus:
        batches.append([next(refill) for _ in range(micro)])
    return sum(len(batch) for batch in batches)


@given(st.integers(1, 400), few, few)
def test_repeated_rows_are_what_a_loader_reads_twice(num_rows, gpus, micro):
    """The rows read in an epoch minus the rows of the data."""
    assert repeats_of_even_batches(num_rows, gpus, micro) == visits(num_rows, gpus, micro) - num_rows


@pytest.mark.parametrize(("gpus", "micro", "repeats"), [(1, 8, 0), (6, 4, 8), (8, 15, 80), (12, 10, 80), (15, 8, 80)])
def test_repeats_of_the_document(gpus, micro, repeats):
    """1000 rows in batches of 120."""
    assert repeats_of_even_batches(1000, gpus, micro) == repeats


@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 64))
def test_a_group_is_cut_if_its_members_lie_in_two_pools(num_groups, group, pool):
    """Compared with the pool of each member."""
    pools = [{member // pool for member in range(at * group, (at + 1) * group)} for at in range(num_groups)]
    assert groups_cut(num_groups, group, pool) == sum(len(its) > 1 for its in pools)


@pytest.mark.parametrize(("group", "cut"), [(6, [4, 8, 16]), (10, [8, 16, 32]), (8, [0, 0, 0])])
def test_group_cuts_of_the_document(group, cut):
    """64 prompts, a batch of 64 in 1, 2 and 4 accumulation steps."""
    assert [groups_cut(64, group, 64 // accumulation) for accumulation in (1, 2, 4)] == cut


@given(batches, few, st.integers(1, 64), st.integers(1, 4))
def test_the_fewest_accumulation_steps(batch, gpus, most, least):
    """Compared with all possible steps. The result is None only if none is possible."""
    possible = [
        steps
        for steps in range(1, batch + 1)
        if batch % (gpus * steps) == 0 and least <= batch // gpus // steps <= most
    ]
    found = accumulation_for(batch, gpus, most, lambda micro, _: micro >= least)
    assert found == (possible[0] if possible else None)


@given(batches, few)
def test_the_nearest_multiple_is_nearest(batch, gpus):
    """No other multiple is nearer."""
    found = nearest_multiple(batch, gpus)
    assert found % gpus == 0
    assert found >= gpus
    assert all(abs(found - batch) <= abs(other - batch) for other in range(gpus, 2 * (batch + gpus), gpus))


@pytest.mark.parametrize(
    ("batch", "gpus", "nearest"),
    [(8, 3, 9), (8, 5, 10), (16, 12, 12), (32, 7, 35), (64, 12, 60), (128, 7, 126), (256, 5, 255), (128, 12, 132)],
)
def test_nearest_batches_of_the_document(batch, gpus, nearest):
    """The figures of the document's table of equal splits."""
    assert nearest_multiple(batch, gpus) == nearest


def test_nearest_counts_are_below_and_above():
    """Either may be None."""
    assert nearest_counts(6, lambda count: 64 % count == 0, 64) == (4, 8)
    assert nearest_counts(65, lambda count: 64 % count == 0, 64) == (64, None)
    assert nearest_counts(3, lambda _: False, 64) == (None, None)
