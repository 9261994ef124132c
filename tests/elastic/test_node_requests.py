"""What is asked of an autoscaler that takes all or nothing."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.elastic.node_requests import NodeRequests
from planner.elastic.states import Rules
from planner.plan import BatchSizes, WorkerRange, make_plan

COUNTS = st.lists(st.integers(1, 500), min_size=1, max_size=60, unique=True).map(sorted)


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


def converse(requests, counts, most, looks=20):
    """What is asked until it stays the same; an autoscaler that can have `most` answers."""
    asked = [requests.count(counts)]
    for _ in range(looks):
        (requests.mark_accepted if asked[-1] <= most else requests.mark_rejected)(asked[-1])
        asked.append(requests.count(counts))
    return asked


@given(COUNTS, st.integers(0, 600))
def test_it_comes_to_the_most_that_is_taken_and_stays_there(counts, most):
    """By halves: for sixty counts no more than seven refusals and acceptances."""
    asked = converse(NodeRequests(Clock()), counts, most)
    best = max((count for count in counts if count <= most), default=counts[0])
    assert asked[8:] == [best] * len(asked[8:])
    assert set(asked) <= set(counts)


@given(COUNTS, st.integers(0, 600), st.integers(0, 600))
def test_a_bound_that_moves_is_found_again(counts, before, after):
    """Lowered at once; raised after ten minutes, step by step, since each try risks the nodes that are kept."""
    clock = Clock()
    requests = NodeRequests(clock)
    converse(requests, counts, before)
    for _ in range(len(counts) + 1):
        clock.now_s += 601
        asked = converse(requests, counts, after)
    assert asked[-1] == max((count for count in counts if count <= after), default=counts[0])


def test_without_a_refusal_all_is_asked_for():
    requests = NodeRequests(Clock())
    assert requests.count([1, 2, 4]) == 4
    requests.mark_accepted(4)
    assert requests.count([1, 2, 4]) == 4
    with pytest.raises(ValueError, match="no counts"):
        requests.count([])


@given(st.integers(1, 300), st.integers(1, 64), st.integers(1, 300), st.integers(1, 300))
def test_no_count_is_asked_for_that_a_smaller_one_equals(batch, micro, least, most):
    """Rising, between the job's bounds, each with a shorter step than the one before; the last is the best of all."""
    most = min(most, batch)
    least = min(least, most)
    sizes = BatchSizes(global_batch=batch, max_micro=micro)
    counts = Rules(sizes=sizes, workers=WorkerRange(least=least, most=most), has_eval=False).worth_asking
    assert least == counts[0]
    costs = [make_plan(sizes, count).step_cost for count in counts]
    assert all(earlier > later for earlier, later in pairwise(costs[1:]))
    assert costs[-1] == make_plan(sizes, most).step_cost
