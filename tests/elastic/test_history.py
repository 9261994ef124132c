"""What a launch knows of the speed of its steps."""

import pytest

from planner.elastic.history import History
from planner.plan import BatchSizes, make_plan
from planner.plan.growth import ResizeCost
from planner.plan.lowered_caps import Caps

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


def report(step, world_size, max_micro):
    """What rank 0 reports."""
    return {
        "step": step,
        "total_steps": 1000,
        "world_size": world_size,
        "max_micro": max_micro,
        "max_tokens": None,
        "commit_s": 0.0,
        "eval_s": 0.0,
    }


def test_each_size_has_the_micro_batches_that_its_group_found():
    """`batch.max_micro: auto`: 2 workers had 8 rounds of 4 samples, 4 workers 1 round of 16."""
    auto = History(sizes=BatchSizes(global_batch=64, max_micro=64), default_cost=history().default_cost)
    found = auto.after_report(report(0, 2, 4)).after_step(2, 40.0)
    found = found.after_report(report(1, 4, 16)).after_step(4, 17.0)
    assert [plan.accumulation_steps for plan in found.speeds.plans.values()] == [8, 1]
    assert (found.step_s(2), found.step_s(4)) == (40.0, 17.0)
    assert found.sizes_at(8) == auto.sizes
    law = found.speeds.law(make_plan(found.sizes_at(2), 2))
    assert law.seconds_per_step(make_plan(found.sizes_at(2), 2)) == pytest.approx(40.0, rel=0.02)


def test_steps_with_other_micro_batches_do_not_count_at_the_same_size():
    """The group of the same size now has other devices, or memory ran out."""
    found = history().after_report(report(0, 2, 8)).after_step(2, 1.0).after_step(4, 0.6)
    assert found.after_report(report(1, 2, 8)).speeds.measured == {2: 1.0, 4: 0.6}
    assert found.after_report(report(1, 2, 4)).speeds.measured == {4: 0.6}


def test_a_size_keeps_its_measured_time_whatever_caps_the_group_that_asks_has():
    """`auto`: two workers have room for one sample each, four for sixteen. Larger groups have the room of four."""
    found = History(sizes=BatchSizes(global_batch=64, max_micro=64), default_cost=ResizeCost(grow_s=1.0, shrink_s=1.0))
    for size, cap, seconds in ((2, 1, 32.0), (4, 16, 2.5)):
        found = found.with_caps(size, Caps(max_micro=cap)).after_step(size, seconds, 64)
    few, many = (make_plan(found.sizes_at(size), size) for size in (2, 4))
    for asking in (few, many):
        assert [found.speeds.seconds_per_step(asking.at(size)) for size in (2, 4)] == [32.0, 2.5]
        assert found.speeds.seconds_per_step(asking.at(8)) < 2.5
