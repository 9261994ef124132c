"""Seconds per step: measured, between, beyond."""

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.plan import BatchSizes, make_plan
from planner.plan.speed import Speeds

step_times = st.floats(1e-3, 1e3)
measured = st.dictionaries(st.integers(1, 64), step_times, max_size=6)
batches = st.integers(1, 600)
modes = st.sampled_from(["balanced", "bitwise"])


def plan_at(world_size, global_batch=240, max_micro=8, mode="balanced"):
    return make_plan(BatchSizes(global_batch=global_batch, max_micro=max_micro, equality=mode), world_size)


@given(measured=measured, global_batch=batches, mode=modes)
def test_what_was_measured_is_what_is_said(measured, global_batch, mode):
    """A fit never overrules a measurement."""
    speeds = Speeds(measured=measured)
    for world_size, seconds in measured.items():
        assert speeds.seconds_per_step(plan_at(world_size, global_batch, mode=mode)) == seconds


@given(measured=measured, world_size=st.integers(1, 80), global_batch=batches, mode=modes)
def test_every_count_has_a_finite_time_above_0(measured, world_size, global_batch, mode):
    """Whatever was measured, with any noise."""
    assert 0 < Speeds(measured=measured).seconds_per_step(plan_at(world_size, global_batch, mode=mode)) < 1e9


@given(counts=st.sets(st.integers(1, 64), max_size=5), fixed_s=st.floats(0, 10), per_sample_s=st.floats(1e-3, 1))
def test_a_count_that_costs_less_is_never_said_to_be_slower(counts, fixed_s, per_sample_s):
    """When what was measured is in that order, so is all that is fitted."""
    speeds = Speeds(measured={w: fixed_s + per_sample_s * plan_at(w).step_cost for w in counts})
    times = [speeds.seconds_per_step(plan_at(w)) for w in range(1, 81)]
    assert all(more <= fewer * (1 + 1e-9) for fewer, more in pairwise(times))


@given(seen=st.integers(1, 64), seconds=step_times, asked=st.integers(1, 80))
def test_one_measurement_makes_time_proportional_to_cost(seen, seconds, asked):
    """Nothing else is known."""
    said = Speeds(measured={seen: seconds}).seconds_per_step(plan_at(asked))
    assert said == pytest.approx(seconds * plan_at(asked).step_cost / plan_at(seen).step_cost)


@given(
    counts=st.sets(st.integers(1, 64), min_size=2, max_size=2),
    times=st.tuples(step_times, step_times),
    asked=st.integers(1, 80),
)
def test_between_two_measurements_lies_what_is_between_them(counts, times, asked):
    """No overshoot."""
    few, many = sorted(counts)
    assume(plan_at(many).step_cost <= plan_at(asked).step_cost <= plan_at(few).step_cost)
    said = Speeds(measured=dict(zip((few, many), times, strict=True))).seconds_per_step(plan_at(asked))
    assert min(times) * (1 - 1e-9) <= said <= max(times) * (1 + 1e-9)


def test_a_fixed_part_of_the_step_is_found():
    """10 s + 0.1 s per sample, seen at costs 120 and 30. At cost 10 it is 11 s, and 3.0 would be proportional."""
    speeds = Speeds(measured={2: 22.0, 8: 13.0})
    assert speeds.seconds_per_step(plan_at(24)) == pytest.approx(11, rel=0.07)


def test_workers_that_share_a_cpu_promise_nothing():
    """2 were as fast as 1 and 3 slower, so 4 are not said to be faster than 3, but for the prior's 1%."""
    speeds = Speeds(measured={1: 1.0, 2: 1.0, 3: 1.1})
    assert speeds.seconds_per_step(plan_at(4)) == pytest.approx(1.1, rel=0.011)


def test_noise_between_neighbours_does_not_hide_what_more_would_bring():
    """29 workers measured as slow as 28: 60 are still thought to be much faster."""
    speeds = Speeds(measured={24: 1.0, 28: 1.0})
    assert speeds.seconds_per_step(plan_at(60)) < 0.6


def test_nothing_measured_still_compares():
    """By the plans alone: 3 samples against 2."""
    fewer, more = (Speeds().seconds_per_step(plan_at(w, global_batch=6)) for w in (2, 3))
    assert fewer / more == pytest.approx(3 / 2)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_times_are_refused(seconds):
    """The error names the number and the count."""
    with pytest.raises(ValueError, match="s per step: it must be finite and above 0"):
        Speeds(measured={4: seconds})
