"""The order: each epoch each row once, whatever the cuts, the world sizes and the crashes."""

import itertools
import random
import re
from fractions import Fraction

import numpy as np
import pytest
from fixed_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import DataError
from planner.order.order import Order
from planner.order.shares import shares


def train_through(order, *, global_batch, num_events, num_rows_at_least, rng):
    """A simulated history: the committed rows after at least `num_events` resizes and crashes.

    Only the cursor is carried over from one world to the next.
    """
    committed, pending = [], []
    cursor = events = 0
    world_size = 1
    while events < num_events or len(committed) < num_rows_at_least:
        pending += global_batch_rows(order, cursor + len(pending), global_batch, world_size)
        what = rng.choice(["go on", "commit", "resize", "crash"])
        if what in {"commit", "resize"}:  # a planned resize commits first
            committed += pending
            cursor, pending = len(committed), []
        if what == "crash":  # work after the last commit is computed again
            pending = []
        if what in {"resize", "crash"}:
            events += 1
            world_size = rng.randint(1, min(16, global_batch))
    return committed


def global_batch_rows(order, start, global_batch, world_size):
    """Every worker's contiguous share of [start, start + global_batch), asked for apart."""
    ends = [start + global_batch * rank // world_size for rank in range(world_size + 1)]  # (world_size + 1,)
    return [row for rank in range(world_size) for row in order.rows(ends[rank], ends[rank + 1]).tolist()]


def assert_nothing_lost_or_repeated(order, committed):
    assert committed == order.rows(0, len(committed)).tolist()
    epochs = [committed[k : k + order.num_samples] for k in range(0, len(committed), order.num_samples)]
    whole = sorted(order.rows(0, order.num_samples).tolist())
    assert len(set(whole)) == order.num_samples
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch)
        assert sorted(epoch) == whole or len(epoch) < order.num_samples


@pytest.mark.parametrize("num_held_out", [0, 2])
@pytest.mark.parametrize(("num_rows", "global_batch"), [(10_000, 96), (97, 32), (5, 12)])
def test_fifty_resizes_lose_and_repeat_nothing(num_rows, global_batch, num_held_out):
    """After 50 resizes and crashes, and two epochs at least, the committed rows are the undisturbed order."""
    order = Order(num_rows=num_rows, num_held_out=num_held_out, seed=11)
    committed = train_through(
        order,
        global_batch=global_batch,
        num_events=50,
        num_rows_at_least=2 * num_rows,
        rng=random.Random(num_rows),
    )
    assert_nothing_lost_or_repeated(order, committed)


@examples(25)
@given(
    num_samples=st.integers(1, 300),
    num_held_out=st.integers(0, 20),
    global_batch=st.integers(1, 100),
    rng=st.randoms(use_true_random=False),
)
def test_any_history_loses_and_repeats_nothing(num_samples, num_held_out, global_batch, rng):
    """For any size of data, global batch and history the committed rows are the undisturbed order."""
    order = Order(num_rows=num_samples + num_held_out, num_held_out=num_held_out, seed=3)
    committed = train_through(
        order, global_batch=global_batch, num_events=8, num_rows_at_least=0, rng=random.Random(rng.random())
    )
    assert_nothing_lost_or_repeated(order, committed)


def test_the_history_test_notices_a_lost_position():
    """The check above is not blind: a cursor one too far after a crash is caught."""
    order = Order(num_rows=97, seed=11)
    with pytest.raises(AssertionError):
        assert_nothing_lost_or_repeated(order, order.rows(0, 50).tolist() + order.rows(51, 300).tolist())


@given(
    num_rows=st.integers(1, 500),
    seed=st.integers(0, 2**64 - 1),
    cuts=st.lists(st.integers(0, 1000), max_size=8),
    base=st.integers(0, 2**50),
)
def test_any_cut_gives_the_same_rows(num_rows, seed, cuts, base):
    """[base, base + 1000) in one piece or in any pieces, empty ones too, are the same rows."""
    order = Order(num_rows=num_rows, seed=seed)
    ends = [base, *sorted(base + cut for cut in cuts), base + 1000]
    pieces = [order.rows(start, stop) for start, stop in itertools.pairwise(ends)]
    assert np.array_equal(np.concatenate(pieces), order.rows(base, base + 1000))


@given(num_samples=st.integers(1, 400), num_held_out=st.integers(0, 100), seed=st.integers(0, 1000))
def test_training_and_held_out_rows_partition_the_data(num_samples, num_held_out, seed):
    """Every row is either trained on once an epoch or held out, never both."""
    order = Order(num_rows=num_samples + num_held_out, num_held_out=num_held_out, seed=seed)
    both = np.concatenate([order.rows(0, num_samples), order.held_out_rows(0, num_held_out)])
    assert np.array_equal(np.sort(both), np.arange(order.num_rows))


def test_the_eval_set_does_not_depend_on_the_seed():
    """Two seeds hold out the same rows in the same order, and train in different orders."""
    first, second = (Order(num_rows=1000, num_held_out=100, seed=seed) for seed in (0, 1))
    assert np.array_equal(first.held_out_rows(0, 100), second.held_out_rows(0, 100))
    assert (first.rows(0, 900) == second.rows(0, 900)).mean() < 0.02


def test_a_larger_eval_set_contains_the_smaller():
    """Holding out more rows keeps those that were held out."""
    small, large = (Order(num_rows=1000, num_held_out=num, seed=0) for num in (10, 50))
    assert set(small.held_out_rows(0, 10).tolist()) < set(large.held_out_rows(0, 50).tolist())


def test_the_eval_set_is_spread_over_the_data():
    """Held-out rows are a fair sample of the data: half of them lie in its first half, to six sigma."""
    rows = Order(num_rows=100_000, num_held_out=10_000, seed=0).held_out_rows(0, 10_000)
    assert abs((rows < 50_000).sum() - 5000) < 6 * 50


def test_held_out_rows_can_be_asked_for_in_pieces():
    """A share of the eval set is the slice of the whole."""
    order = Order(num_rows=1000, num_held_out=100, seed=0)
    assert np.array_equal(order.held_out_rows(30, 70), order.held_out_rows(0, 100)[30:70])


def test_every_epoch_has_another_order():
    """Consecutive epochs hold the same rows, differently ordered."""
    order = Order(num_rows=1000, seed=0)
    first, second = order.rows(0, 1000), order.rows(1000, 2000)
    assert np.array_equal(np.sort(first), np.sort(second))
    assert (first == second).mean() < 0.02


def test_one_call_may_cover_many_epochs():
    """A global batch larger than the data holds whole epochs, each row once in each."""
    rows = Order(num_rows=5, seed=0).rows(3, 3 + 5 * 1000)
    assert np.array_equal(np.bincount(rows), np.full(5, 1000))


def test_a_trillion_rows_are_served_at_once():
    """At 10**12 rows, far into training, a global batch comes with distinct rows over the whole data."""
    rows = Order(num_rows=10**12, num_held_out=10**6, seed=2).rows(10**15, 10**15 + 1024)
    assert rows.dtype == np.int64
    assert len(np.unique(rows)) == 1024
    assert rows.min() < 10**11
    assert 9 * 10**11 < rows.max() < 10**12


def test_positions_reach_the_end_of_int64():
    """The last position that a cursor can hold is served. The next is refused."""
    order = Order(num_rows=10, seed=0)
    assert len(order.rows(2**63 - 3, 2**63 - 1)) == 2
    with pytest.raises(DataError, match="positions"):
        order.rows(0, 2**63)


def test_golden_rows():
    """The order of every run ever made: these numbers must never change."""
    order = Order(num_rows=1000, num_held_out=10, seed=42)
    assert order.rows(985, 995).tolist() == [735, 935, 995, 46, 71, 530, 167, 626, 112, 302]
    assert order.held_out_rows(0, 10).tolist() == [196, 308, 408, 202, 725, 687, 507, 635, 842, 212]
    assert Order(num_rows=10**9, seed=0).rows(0, 4).tolist() == [383127296, 406918270, 121522142, 297805961]


@pytest.mark.parametrize(("num_rows", "num_held_out"), [(0, 0), (5, 5), (5, 6), (5, -1), (2**40 + 1, 0)])
def test_numbers_that_leave_nothing_to_train_on_are_refused(num_rows, num_held_out):
    """No training row, a negative held-out count or too many rows are refused at birth."""
    with pytest.raises(DataError):
        Order(num_rows=num_rows, num_held_out=num_held_out, seed=0)


def test_the_refusal_says_the_numbers_and_the_way_out():
    """The error names both counts and the most that can be held out."""
    with pytest.raises(DataError, match=r"5 rows and 7 are held out.*at most 4"):
        Order(num_rows=5, num_held_out=7, seed=0)


@given(num_rows=st.integers(0, 4), num_held_out=st.integers(0, 6))
def test_the_way_out_of_the_refusal_is_one(num_rows, num_held_out):
    """The most that can be held out is accepted, and is never 0: then the error says to hold out none."""
    if num_rows > num_held_out:
        Order(num_rows=num_rows, num_held_out=num_held_out, seed=0)
        return
    with pytest.raises(DataError) as caught:
        Order(num_rows=num_rows, num_held_out=num_held_out, seed=0)
    text = str(caught.value)
    most = re.search(r"at most (\d+)", text)
    if most:
        assert int(most[1]) >= 1
        Order(num_rows=num_rows, num_held_out=int(most[1]), seed=0)
    elif num_rows == 1:
        assert "Hold out none (eval.samples 0), or add data" in text
        Order(num_rows=1, num_held_out=0, seed=0)
    else:
        assert text == "the data has no rows, so there is none to train on. Add data"
    assert "1 rows" not in text


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_out_of_range_are_refused_at_birth(seed):
    """A seed that does not fit 64 bits is refused before the first batch."""
    with pytest.raises(DataError, match="seed"):
        Order(num_rows=5, seed=seed)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2)])
def test_ranges_out_of_bounds_are_refused(start, stop):
    """A negative or backward range is refused, for both kinds of rows."""
    order = Order(num_rows=10, num_held_out=5, seed=0)
    with pytest.raises(DataError, match="positions"):
        order.rows(start, stop)
    with pytest.raises(DataError, match="held-out"):
        order.held_out_rows(start, stop)


def test_held_out_rows_end():
    """An index past the held-out set is refused: it does not run on into another epoch."""
    with pytest.raises(DataError, match="held-out"):
        Order(num_rows=10, num_held_out=5, seed=0).held_out_rows(3, 6)


# -- mixtures

set_sizes = st.lists(st.integers(1, 60), min_size=1, max_size=6).map(tuple)


@given(sizes=set_sizes, part=st.floats(0, 0.99), seed=st.integers(0, 1000))
def test_rows_are_held_out_of_each_set_in_proportion(sizes, part, seed):
    """Each set's count is exact to one row. Every row is trained on once an epoch or held out."""
    num_rows, num_held_out = sum(sizes), int(part * sum(sizes))
    order = Order(num_rows=num_rows, num_held_out=num_held_out, seed=seed, set_rows=sizes)
    training, held_out = order.rows(0, order.num_samples), order.held_out_rows(0, num_held_out)
    assert np.array_equal(np.sort(np.concatenate([training, held_out])), np.arange(num_rows))
    found = np.bincount(order.set_of(held_out), minlength=len(sizes))
    assert tuple(found) == order.set_held_out
    assert all(abs(count - num_held_out * size / num_rows) < 1 for count, size in zip(found, sizes, strict=True))


@given(sizes=set_sizes, num_held_out=st.integers(0, 3), cuts=st.lists(st.integers(0, 200), max_size=5))
def test_any_cut_of_a_mixture_gives_the_same_rows(sizes, num_held_out, cuts):
    """In one piece or in any pieces."""
    order = Order(num_rows=sum(sizes) + 4, num_held_out=num_held_out, seed=5, set_rows=(*sizes, 4))
    pieces = [order.rows(start, stop) for start, stop in itertools.pairwise([0, *sorted(cuts), 200])]
    assert np.array_equal(np.concatenate(pieces), order.rows(0, 200))


def test_the_rows_of_a_set_are_held_out_whatever_the_other_sets_are():
    """Another set beside it changes how many rows are held out, and not which come first."""
    alone = Order(num_rows=100, num_held_out=10, seed=0).held_out_rows(0, 10).tolist()
    mixed = Order(num_rows=300, num_held_out=30, seed=0, set_rows=(200, 100)).held_out_rows(0, 30)
    assert (mixed[20:] - 200).tolist() == alone


@given(total=st.integers(0, 10**6), weights=st.lists(st.integers(0, 1000), min_size=1, max_size=30).filter(any))
def test_shares_are_exact_to_one(total, weights):
    """They add up to the whole, and each differs from its exact share by less than one."""
    found = shares(total, weights)
    assert sum(found) == total
    assert all(
        abs(share - Fraction(total * weight, sum(weights))) < 1 for share, weight in zip(found, weights, strict=True)
    )
