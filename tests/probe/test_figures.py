"""How large the repeats of a measurement are, and what its figures mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.probe.figures import (
    GB,
    MB,
    Figure,
    Move,
    Pace,
    gain_text,
    next_bytes,
    repeated,
    slow_ones,
    slow_start_text,
    slowest_s,
    together_gb_per_s,
    unsteady_text,
)


class Store:
    """Moves bytes at a constant rate on each of some nodes, by its own clock."""

    def __init__(self, *bytes_per_s):
        self.bytes_per_s = bytes_per_s
        self.spent_s = 0.0
        self.sizes = []

    def __call__(self, num_bytes):
        self.sizes.append(num_bytes)
        moves = [Move(num_bytes=num_bytes, seconds=num_bytes / rate) for rate in self.bytes_per_s]
        self.spent_s += slowest_s(moves)
        return moves


@pytest.mark.parametrize("rate", [1e3, 1e6, 5e7, 4.2e8, 3e9, 1e11])
def test_each_rate_is_found_in_seconds(rate):
    """A store of 1 MB/s does not take minutes, and a fast one is not measured by a few bytes."""
    pace, store = Pace(most_bytes=GB), Store(rate)
    repeats = repeated(store, pace)
    assert together_gb_per_s(repeats.moves[-1]) == pytest.approx(rate / 1e9)
    assert store.spent_s < max(2 * pace.limit_s, pace.first_bytes / rate * 1.01)
    assert 1 <= len(repeats.moves) <= pace.repeats
    if rate >= 1e6:
        assert store.sizes[-1] == GB or repeats.moves[-1][0].seconds >= pace.target_s / 2


@given(st.integers(1, 10**10), st.floats(0, 100), st.integers(1, 10**10))
def test_a_size_only_grows_and_keeps_its_bound(num_bytes, seconds, most):
    """So that the search for it ends."""
    pace = Pace(most_bytes=max(most, num_bytes))
    assert num_bytes <= next_bytes(num_bytes, seconds, pace) <= pace.most_bytes


def test_repeats_have_one_size():
    """Only they count, not the smaller ones before them, and not the first one of their own."""
    store = Store(1e9)
    repeats = repeated(store, Pace(most_bytes=GB))
    assert len(repeats.moves) == 5
    assert {moves[0].num_bytes for moves in (repeats.first, *repeats.moves)} == {store.sizes[-1]}
    assert store.sizes[-6:] == [store.sizes[-1]] * 6
    assert store.sizes[0] == MB


def test_a_size_that_is_asked_for_is_not_exceeded():
    """Also if it is smaller than the first size otherwise is."""
    store = Store(1e9)
    repeated(store, Pace(most_bytes=1000))
    assert set(store.sizes) == {1000}


def test_nodes_together_take_as_long_as_the_slowest():
    """A commit is done when its last file is."""
    moves = Store(1e9, 1e9, 5e8)(10**9)
    assert together_gb_per_s(moves) == pytest.approx(1.5)


def test_a_slow_node_is_found():
    """One with less than half of the usual rate."""
    store = Store(1e9, 1.1e9, 4e8)
    assert slow_ones(["a", "b", "c"], [store(10**6)] * 3) == {"c": pytest.approx(0.4)}
    assert slow_ones(["a", "b"], [store(10**6)[:2]] * 3) == {}


@pytest.mark.parametrize(
    ("together", "says"),
    [(1.1, "the storage is the limit"), (1.8, "3 nodes write 1.8 times as much as one"), (2.9, "grows with the nodes")],
)
def test_what_more_nodes_would_do(together, says):
    """By the rate of one node and that of three."""
    assert says in gain_text(1.0, together, 3)


@pytest.mark.parametrize(("first", "warns"), [(1.1, False), (0.9, True)])
def test_a_slow_first_file_is_told(first, warns):
    """It does not count, but a run's first commits may be like it."""
    assert bool(slow_start_text(first, 2.0)) == warns


@pytest.mark.parametrize(("values", "warns"), [((1.0, 1.9, 1.5), False), ((1.0, 2.1, 1.5), True)])
def test_repeats_that_differ_are_told(values, warns):
    """A median of them may mislead."""
    figure = Figure(what="write", where="a", unit="GB/s", values=values, num_bytes=1)
    assert figure.median == 1.5
    assert ("2.1 times the lowest" in unsteady_text(figure)) == warns
