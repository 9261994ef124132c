"""Rows of a data set of their own for evaluation: which are chosen, and that all others are trained on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import DataError
from planner.order.order import Order, chosen_in, chosen_rows


@given(num_rows=st.integers(1, 300), num_held_out=st.integers(1, 50), seed=st.integers(0, 1000))
def test_rows_apart_leave_the_order_of_training_alone(num_rows, num_held_out, seed):
    """The training order is the one without any evaluation, and the held-out rows follow all training rows."""
    plain = Order(num_rows=num_rows, seed=seed)
    apart = Order(num_rows=num_rows, num_held_out=num_held_out, seed=seed, is_apart=True)
    assert apart.num_samples == num_rows
    assert apart.num_withheld == 0
    assert np.array_equal(apart.rows(0, 2 * num_rows), plain.rows(0, 2 * num_rows))
    assert apart.held_out_rows(0, num_held_out).tolist() == list(range(num_rows, num_rows + num_held_out))


def test_rows_apart_may_be_more_than_those_to_train_on():
    """Held out of the same data, they would leave none."""
    assert Order(num_rows=3, num_held_out=10, seed=0, is_apart=True).num_samples == 3
    with pytest.raises(DataError):
        Order(num_rows=3, num_held_out=10, seed=0)


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5), data=st.data())
def test_chosen_rows_are_distinct_and_of_each_set_in_proportion(sizes, data):
    """Each set's number is exact to one row, and is what `chosen_in` says."""
    sets, total = tuple(sizes), sum(sizes)
    count = data.draw(st.integers(1, total))
    rows = chosen_rows(sets, count)
    assert len(set(rows.tolist())) == count
    found = np.bincount(np.searchsorted(np.cumsum(sets), rows, side="right"), minlength=len(sets)).tolist()
    assert found == list(chosen_in(sets, count))
    assert all(abs(number - count * size / total) < 1 for number, size in zip(found, sizes, strict=True))


def test_chosen_rows_are_those_that_would_be_held_out():
    """A choice of a test split is the one that an order of that split makes. All rows keep their order."""
    assert np.array_equal(chosen_rows((100,), 10), Order(num_rows=100, num_held_out=10, seed=5).held_out_rows(0, 10))
    assert chosen_rows((9, 4), 13).tolist() == list(range(13))


def test_the_rows_of_each_set_to_train_on():
    """They are the set's rows without those that are held out of it."""
    held_out = Order(num_rows=100, num_held_out=10, seed=0, set_rows=(70, 30))
    assert (held_out.set_held_out, held_out.set_samples) == ((7, 3), (63, 27))
    apart = Order(num_rows=100, num_held_out=10, seed=0, set_rows=(70, 30), is_apart=True)
    assert (apart.set_held_out, apart.set_samples) == ((0, 0), (70, 30))
    assert Order(num_rows=100, num_held_out=10, seed=0).set_samples == (90,)
