"""The ring of nodes, and how often copies are taken."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.plan.interval import COPY_SHARE, copy_interval
from planner.train.copies import next_node

NODES = st.lists(st.sampled_from(["", *"abcdef"]), min_size=1).filter(any)


@given(NODES)
def test_each_node_has_the_copies_of_one_other_node(nodes):
    """However many workers a node has, and whatever nodes are without a keeper."""
    ring = {node for node in nodes if node}
    following = {node: next_node(nodes, node) for node in ring}
    if len(ring) == 1:
        assert set(following.values()) == {""}
    else:
        assert set(following.values()) == ring
        assert all(node != other for node, other in following.items())


@given(NODES, st.sets(st.sampled_from("abcdef"), min_size=1))
def test_the_floor_has_the_copies_of_all_other_nodes(nodes, floor):
    """Its own are on another node of the ring. Without such a node, the ring is as ever."""
    ring = {node for node in nodes if node}
    following = {node: next_node(nodes, node, floor) for node in ring}
    assert all(node != other for node, other in following.items())
    if ring & floor:
        assert {following[node] for node in ring - floor} <= floor
        assert {following[node] for node in ring & floor} <= ring | {""}
    else:
        assert following == {node: next_node(nodes, node) for node in ring}


def test_the_nodes_of_a_floor_share_the_copies():
    """Five others on two: three and two."""
    nodes = [*"abcdefg"]
    sent = [next_node(nodes, node, "ab") for node in "cdefg"]
    assert sent == [*"ababa"]


@given(st.floats(0, 1e3), st.floats(1e-6, 1e3), st.floats(1e-3, 0.9))
def test_copies_take_their_share_of_the_time_and_no_more(copy_s, step_s, share):
    """And one step less between them would be too much."""
    steps = copy_interval(copy_s, step_s, share)

    def taken(steps):
        return copy_s / (steps * step_s + copy_s)

    assert steps >= 1
    assert taken(steps) <= share * (1 + 1e-9)
    assert steps == 1 or taken(steps - 1) > share * (1 - 1e-9)


def test_a_copy_of_a_tenth_of_a_step():
    """Two percent: the copy's 49th part."""
    assert (COPY_SHARE, copy_interval(0.1, 1.0), copy_interval(0.0, 1.0), copy_interval(1.0, 1.0)) == (0.02, 5, 1, 49)


@pytest.mark.parametrize("wrong", [(-1.0, 1.0, 0.1), (1.0, 0.0, 0.1), (math.inf, 1.0, 0.1), (1.0, 1.0, 1.0)])
def test_numbers_out_of_range(wrong):
    """A caller's mistake."""
    with pytest.raises(ValueError, match="no interval"):
        copy_interval(*wrong)
