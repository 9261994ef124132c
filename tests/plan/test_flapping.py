"""Decisions over time: capacity that comes and goes, simulated with the product's own `revise`."""

import math
from itertools import accumulate, cycle, takewhile
from typing import NamedTuple

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from planner.events.sizing import UsesAll
from planner.plan.capacity_history import CapacityAt
from planner.plan.growth import Growth, ResizeCost
from planner.plan.layout import Balanced
from planner.plan.revise import Decision, Situation, revise
from planner.plan.speed import Speeds

IN_PLACE = ResizeCost(grow_s=1.4, shrink_s=1.0)
NEW_PROCESSES = ResizeCost(grow_s=8.0, shrink_s=8.0)


class Outcome(NamedTuple):
    samples: float
    resizes: int


def steps_per_s(plan):
    """A step takes 0.1 s per sample of cost."""
    return 10 / plan.step_cost


def simulate(policy, changes, cost, *, end_s=300.0, global_batch=48):
    """One run that never ends by itself; the policy is asked after a change, a resize and at `until_s`.

    What is under way is not undone, and nothing is trained meanwhile.
    """
    plan = Balanced(global_batch=global_batch, world_size=changes[0].world_size, max_micro=64)
    now_s, samples, resizes, measured = 0.0, 0.0, 0, {}
    while now_s < end_s:
        measured[plan.world_size] = 1 / steps_per_s(plan)
        seen = [change for change in changes if change.time_s <= now_s]
        decision = policy(situation(plan, seen, measured, cost, now_s))
        if decision.kind == "resize":
            now_s += cost.grow_s if decision.world_size > plan.world_size else cost.shrink_s
            plan, resizes = plan.at(decision.world_size), resizes + 1
        else:
            upcoming = [change.time_s for change in changes[len(seen) :]]
            later_s = min([decision.until_s, end_s, *upcoming[:1]])
            samples += (later_s - now_s) * global_batch * steps_per_s(plan)
            now_s = later_s
    return Outcome(samples, resizes)


def situation(plan, seen, measured, cost, now_s):
    return Situation(
        plan=plan,
        capacity=seen,
        speeds=Speeds(measured=dict(measured)),
        cost=cost,
        remaining_steps=10**9,
        workers_min=1,
        workers_max=64,
        now_s=now_s,
    )


def always(now):
    """Any other count, at once."""
    kind = "keep" if now.usable == now.plan.world_size else "resize"
    return Decision(kind=kind, world_size=now.usable, until_s=math.inf, reason=UsesAll(size=now.usable))


def never(now):
    """Only what is no choice."""
    return always(now) if now.usable < now.plan.world_size else always_keep(now)


def always_keep(now):
    return Decision(kind="keep", world_size=now.plan.world_size, until_s=math.inf, reason=UsesAll(size=now.usable))


def flapping(world_size, low_s=10.0, high_s=10.0, end_s=300.0, then=None):
    """W, then W + 1, in turn. From `end_s` on, `then`."""
    times_s = takewhile(lambda time_s: time_s < end_s, accumulate(cycle((low_s, high_s)), initial=0.0))
    changes = zip(times_s, cycle((world_size, world_size + 1)), strict=False)
    settled = [] if then is None else [(end_s, then)]
    return [CapacityAt(time_s=time_s, world_size=count) for time_s, count in [*changes, *settled]]


def price_of_learning(world_size, cost, global_batch=48):
    """Samples: one resize there and back, and waiting as long as `revise` ever does, once each."""
    plan = Balanced(global_batch=global_batch, world_size=world_size, max_micro=64)
    times = {"step_s": 1 / steps_per_s(plan), "new_step_s": 1 / steps_per_s(plan.at(world_size + 1))}
    growth = Growth(remaining_s=math.inf, cost=cost, **times)
    seconds = cost.grow_s + cost.shrink_s + growth.gain * growth.longest_wait_s
    return seconds * global_batch * steps_per_s(plan)


@pytest.mark.parametrize(
    ("world_size", "cost", "most_resizes"),
    [(2, IN_PLACE, 29), (4, IN_PLACE, 6), (2, NEW_PROCESSES, 2), (4, NEW_PROCESSES, 2), (8, IN_PLACE, 0)],
)
def test_five_minutes_of_flapping_cost_at_most_a_first_try(world_size, cost, most_resizes):
    """W and W + 1 in turn, every 10 s: where 10 s pay for two resizes it follows, elsewhere it soon stays.

    8 -> 9 is never faster at G=48.
    """
    changes = flapping(world_size)
    ours, stays, follows = (simulate(policy, changes, cost) for policy in (revise, never, always))
    assert ours.resizes <= most_resizes
    plan = Balanced(global_batch=48, world_size=world_size, max_micro=64)
    pair = (cost.grow_s + cost.shrink_s) * 48 * steps_per_s(plan)
    assert ours.samples >= max(stays.samples, follows.samples) - (pair if most_resizes else 0)


@given(
    world_size=st.integers(1, 9),
    low_s=st.floats(1, 30),
    high_s=st.floats(1, 60),
    grow_s=st.floats(0.25, 12),
    shrink_s=st.floats(0.25, 12),
)
@example(world_size=5, low_s=15.25, high_s=11.5, grow_s=7.5, shrink_s=0.25)
@example(world_size=4, low_s=24.5, high_s=23.5, grow_s=10.75, shrink_s=0.5)
def test_at_any_rhythm_it_loses_no_more_than_the_price_of_learning(world_size, low_s, high_s, grow_s, shrink_s):
    """Against the better of two that know beforehand: always resize, never resize. G=360: every count is faster.

    2% are for intervals that almost pay: each loses too little to outweigh the hope that the next one stays.
    Room that comes back during the pause for its loss is another matter, see below.
    """
    assume(shrink_s <= low_s)
    cost, changes = ResizeCost(grow_s=grow_s, shrink_s=shrink_s), flapping(world_size, low_s, high_s)
    ours, stays, follows = (simulate(policy, changes, cost, global_batch=360) for policy in (revise, never, always))
    best = max(stays.samples, follows.samples)
    assert ours.samples >= 0.98 * best - price_of_learning(world_size, cost, 360)
    assert ours.resizes <= follows.resizes


@pytest.mark.xfail(strict=True, reason="an interval counts from its start, also where our own pause has used it up")
def test_room_that_comes_back_during_a_pause_is_judged_by_what_is_left_of_it():
    """Here 4 of 7 s are left, which do not pay for two pauses of 1 s and 4 s: it should stay, and moves each time."""
    cost, changes = ResizeCost(grow_s=1.0, shrink_s=4.0), flapping(1, low_s=1.0, high_s=7.0)
    ours, stays = (simulate(policy, changes, cost, global_batch=360) for policy in (revise, never))
    assert ours.samples >= 0.98 * stays.samples - price_of_learning(1, cost, 360)


@pytest.mark.parametrize("flaps_for_s", [300.0, 3600.0])
@pytest.mark.parametrize("cost", [IN_PLACE, NEW_PROCESSES])
def test_it_is_not_stuck_when_capacity_settles(flaps_for_s, cost):
    """It moves within a quarter more than the longest interval that did not pay, however long the flapping took."""
    changes = flapping(4, end_s=flaps_for_s, then=5)
    before, after = (simulate(revise, changes, cost, end_s=flaps_for_s + more_s) for more_s in (0.0, 13.0))
    assert after.resizes == before.resizes + 1


@given(high_s=st.floats(200, 2000), cost=st.sampled_from([IN_PLACE, NEW_PROCESSES]))
def test_newcomers_that_stay_for_long_are_always_taken(high_s, cost):
    """As stock does, but for the pause in which more might come."""
    end_s = 4 * (30.0 + high_s)
    changes = flapping(4, 30.0, high_s, end_s=end_s)
    ours, follows = (simulate(policy, changes, cost, end_s=end_s) for policy in (revise, always))
    assert ours.resizes == follows.resizes
    assert ours.samples > 0.98 * follows.samples
