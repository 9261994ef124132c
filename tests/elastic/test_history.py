"""What a launch knows of the speed of its steps."""

import pytest

from planner.elastic.history import History
from planner.plan import BatchSizes, ResizeCost, make_plan

SIZES = BatchSizes(global_batch=64, max_micro=8)


def history():
    return History(sizes=SIZES, default_cost=ResizeCost(grow_s=1.0, shrink_s=1.0))


def test_the_part_in_collectives_is_a_median_too():
    """Of the steps that say it. One that waited for a slow worker does not count much."""
    found = history()
    for waited_s in (0.2, 0.2, 1.9):
        found = found.after_step(2, 2.0, waited_s=waited_s)
    speeds = found.after_step(1, 3.8).speeds
    assert speeds.measured == {1: 3.8, 2: 2.0}
    assert speeds.waited == {2: pytest.approx(0.2)}


def test_collectives_tell_the_controller_what_more_workers_cost():
    """3.2 s on one worker, and 2 s with 0.4 s of bytes on two: eight compute for 0.4 s and gather once, not four times.

    Without the waits, the time of the bytes is a part of every step.
    """
    known = history().after_step(1, 3.2).after_step(2, 2.0, waited_s=0.4)
    unknown = history().after_step(1, 3.2).after_step(2, 2.0)
    assert known.speeds.law(make_plan(SIZES, 2)).in_node_s_per_byte.value > 0
    assert not unknown.speeds.law(make_plan(SIZES, 2)).in_node_s_per_byte.value
    assert known.step_s(8) == pytest.approx(0.4 + 0.4 * (2 * 1 + 1) / (2 * 4 + 1) * (7 / 8) / (1 / 2))
    assert known.step_s(8) < unknown.step_s(8)


def test_a_step_that_only_waited_is_still_a_step():
    """The waits are of an earlier step, which may have taken longer."""
    found = history().after_step(4, 0.5, waited_s=3.0)
    assert found.speeds.waited == {4: 0.5}
    assert 0 < found.step_s(8) < 10
