"""Keep, resize, wait or pause: what a decision promises in any situation."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.events import sizing
from planner.plan.capacity_history import CapacityAt
from planner.plan.forced_restarts import ForcedRestarts
from planner.plan.growth import NEW_PROCESSES, ResizeCost
from planner.plan.layout import LAYOUTS, Balanced
from planner.plan.revise import Situation, revise, worth_asking
from planner.plan.speed import Speeds

COST = ResizeCost(grow_s=1.4, shrink_s=1.0)


def history(*changes):
    return tuple(CapacityAt(time_s=time_s, world_size=world_size) for time_s, world_size in changes)


def situation(*, world_size, changes, now_s, global_batch=48, seconds=None, **more):
    """A second per step at the present count, unless `seconds` (by world size) say otherwise."""
    values = {"cost": COST, "remaining_steps": 10_000, "workers_min": 1, "workers_max": 64, **more}
    return Situation(
        plan=Balanced(global_batch=global_batch, world_size=world_size, max_micro=8),
        capacity=history(*changes),
        speeds=Speeds(measured={world_size: 1.0} if seconds is None else seconds),
        now_s=now_s,
        **values,
    )


@st.composite
def histories(draw):
    """Up to 30 changes, seconds to hours apart, on a clock that began anywhere."""
    time_s, changes = draw(st.floats(-1e6, 1e6)), []
    for gap_s, count in draw(st.lists(st.tuples(st.floats(0.1, 4000), st.integers(0, 40)), min_size=1, max_size=30)):
        time_s += gap_s
        changes.append((time_s, count))
    return changes


def forced_times(changes):
    """The last restarts, if each change forced one, and if each second one did."""
    times = tuple(time_s for time_s, _ in changes)
    return times[-8:], times[1::2][-8:]


@st.composite
def situations(draw):
    changes = draw(histories())
    workers_min = draw(st.integers(1, 8))
    workers_max = draw(st.integers(workers_min, 48))
    seconds = st.floats(0.01, 100)
    return situation(
        world_size=draw(st.integers(workers_min, workers_max)),
        changes=changes,
        now_s=changes[-1][0] + draw(st.floats(0, 1000)),
        global_batch=draw(st.integers(1, 600)),
        seconds=draw(st.dictionaries(st.integers(1, 48), seconds, max_size=5)),
        cost=ResizeCost(grow_s=draw(st.floats(0, 60)), shrink_s=draw(st.floats(0, 60)), lead_s=draw(st.floats(0, 10))),
        remaining_steps=draw(st.integers(0, 10**6)),
        forced=ForcedRestarts(since_s=changes[0][0], times=draw(st.sampled_from([(), *forced_times(changes)]))),
        workers_min=workers_min,
        workers_max=workers_max,
    )


@given(now=situations())
def test_it_never_grows_to_a_count_that_is_not_faster(now):
    """Neither by the plan nor by what was measured."""
    decision = revise(now)
    if decision.kind == "resize" and decision.world_size > now.plan.world_size:
        then = now.plan.at(decision.world_size)
        assert then.step_cost < now.plan.step_cost
        assert now.speeds.seconds_per_step(then) < now.step_s


@given(now=situations())
def test_it_stays_within_the_jobs_bounds_and_what_is_there(now):
    """And `keep` and `wait` name the present count."""
    decision = revise(now)
    if decision.kind == "resize":
        assert now.workers_min <= decision.world_size <= now.usable
        assert decision.until_s == now.now_s
    elif decision.kind == "pause":
        assert now.usable < now.workers_min
        assert decision.world_size == 0
    else:
        assert decision.world_size == now.plan.world_size <= now.usable
        assert decision.until_s > now.now_s


WHY = {
    "pause": {sizing.TooLittleRoom},
    "resize": {sizing.WorkersLeave, sizing.Pays, sizing.PaysByPlan},
    "keep": {sizing.UsesAll, sizing.NotNeeded, sizing.NotFaster, sizing.NotWonBack},
    "wait": {
        sizing.NotMeasured,
        sizing.RoomJustChanged,
        sizing.MoreMayCome,
        sizing.StaysTooShort,
        sizing.RestartsTooOften,
    },
}


@given(now=situations())
def test_each_decision_says_what_its_reason_is_about(now):
    """Of a closed set. A run that keeps its size uses all that it may, or says why not."""
    decision = revise(now)
    assert type(decision.reason) in WHY[decision.kind]
    if decision.kind in {"keep", "wait"}:
        assert isinstance(decision.reason, sizing.UsesAll) == (now.usable == now.plan.world_size)


@given(now=situations())
def test_it_shrinks_at_once_where_workers_leave(now):
    """With less room than workers it resizes at once, to a count as fast as all that stay, or pauses."""
    assume(now.usable < now.plan.world_size)
    decision = revise(now)
    assert decision.kind == ("resize" if now.usable >= now.workers_min else "pause")
    assert decision.reason.room == now.usable
    if decision.kind == "resize":
        assert now.plan.at(decision.world_size).step_cost == now.plan.at(now.usable).step_cost


@given(now=situations())
def test_equal_situations_give_equal_decisions(now):
    """Also when the clock began elsewhere: only differences of time count."""
    assert revise(now) == revise(replace(now))
    whole = [replace(change, time_s=float(round(change.time_s))) for change in now.capacity]
    moved = [replace(change, time_s=change.time_s + 1024) for change in whole]
    here = revise(replace(now, capacity=whole, now_s=whole[-1].time_s + 7))
    there = revise(replace(now, capacity=moved, now_s=moved[-1].time_s + 7))
    assert (here.kind, here.world_size) == (there.kind, there.world_size)


@given(now=situations())
def test_a_resize_by_choice_pays_before_the_run_ends(now):
    """If the newcomers stay, the run ends earlier. Before any measurement, this holds for the plan's cost."""
    decision = revise(now)
    if decision.kind != "resize" or decision.world_size <= now.plan.world_size:
        return
    if not now.speeds.measured:
        assert now.plan.step_cost >= 1.5 * now.plan.at(decision.world_size).step_cost
        lately = [c.world_size for c in now.capacity if c.time_s > now.now_s - now.cost.grow_s]
        assert {now.useful(world_size) for world_size in lately if world_size} <= {decision.world_size}
        assert 0 not in lately
    else:
        faster = now.speeds.seconds_per_step(now.plan.at(decision.world_size)) / now.step_s
        lead_s, grow_s = now.cost.lead_s, now.cost.grow_s
        assert lead_s + grow_s + (now.remaining_s - lead_s) * faster < now.remaining_s


@given(now=situations())
def test_waiting_ends_when_capacity_stays(now):
    """Whatever came before, it ends up as fast as the room allows, within twice what the slowest gain pays in.

    Up to 47 workers more can be lost, so a restart that they cause counts 47 times.
    """
    least_gain = 0.02
    start_s = now.now_s
    now = replace(now, speeds=Speeds(measured={1: now.plan.at(1).step_cost * 0.1}), remaining_steps=10**9)
    cost = now.cost
    bound_s = 2 * (cost.lead_s + cost.grow_s + (cost.grow_s + 47 * cost.shrink_s) / least_gain)
    for _ in range(100):
        decision = revise(now)
        if decision.kind in {"keep", "pause"}:
            break
        assert decision.until_s - start_s <= bound_s + 1e-6
        now = replace(now, now_s=decision.until_s, plan=now.plan.at(decision.world_size))
    assert decision.kind == ("keep" if now.usable >= now.workers_min else "pause")
    if decision.kind == "keep":
        assert now.plan.step_cost * (1 - least_gain) <= now.plan.at(now.usable).step_cost


@given(global_batch=st.integers(1, 600), most=st.integers(1, 80), mode=st.sampled_from(["balanced", "bitwise"]))
def test_only_counts_that_help_are_worth_asking_for(global_batch, most, mode):
    """As fast as `most`, and one fewer would be slower."""
    plan = LAYOUTS[1][mode](global_batch=global_batch, world_size=1, max_micro=8)
    count = worth_asking(plan, most)
    assert 1 <= count <= most
    assert plan.at(count).step_cost == plan.at(most).step_cost
    assert count == 1 or plan.at(count - 1).step_cost > plan.at(count).step_cost


def test_eleven_of_fifteen_are_worth_asking_for_at_32():
    """The example of the design: 11 to 15 compute 3 samples one after another, 16 compute 2."""
    plan = Balanced(global_batch=32, world_size=4, max_micro=8)
    assert [worth_asking(plan, most) for most in (10, 11, 15, 16, 31, 40)] == [8, 11, 11, 16, 16, 32]


def move(size, to, samples, to_samples, step_s=None, to_step_s=None):
    step_s, to_step_s = (None if each is None else pytest.approx(each, rel=0.01) for each in (step_s, to_step_s))
    return sizing.Move(
        size=size,
        to=to,
        samples=samples,
        to_samples=to_samples,
        step_s=step_s,
        to_step_s=to_step_s,
        on_one_machine=False,
    )


@pytest.mark.parametrize(
    ("now", "kind", "world_size", "reason"),
    [
        (situation(world_size=4, changes=[(0, 4)], now_s=9), "keep", 4, sizing.UsesAll(size=4)),
        (
            situation(world_size=12, changes=[(0, 12), (5, 15)], now_s=9, global_batch=32),
            "keep",
            12,
            sizing.NotNeeded(size=12, room=15, samples=3),
        ),
        (
            situation(world_size=4, changes=[(0, 4), (50, 8)], now_s=50, workers_max=8),
            "resize",
            8,
            sizing.Pays(
                move=move(4, 8, 12, 6, 1.0, 0.5), win_back_s=pytest.approx(2.8), pause_s=1.4, remaining_s=10_000
            ),
        ),
        (
            situation(world_size=4, changes=[(0, 4), (50, 5)], now_s=50, remaining_steps=25, cost=NEW_PROCESSES),
            "keep",
            4,
            sizing.NotWonBack(
                move=move(4, 5, 12, 10, 1.0, 0.833), win_back_s=pytest.approx(55.8), pause_s=9.3, remaining_s=25
            ),
        ),
        (
            situation(world_size=2, changes=[(0, 2), (50, 3)], now_s=90, seconds={2: 1.0, 3: 0.99}, workers_max=3),
            "keep",
            2,
            sizing.NotFaster(move=move(2, 3, 24, 16, 1.0, 0.99), least=0.02),
        ),
        (
            situation(world_size=15, changes=[(0, 15), (50, 13)], now_s=50, global_batch=32),
            "resize",
            11,
            sizing.WorkersLeave(room=13, move=move(15, 11, 3, 3, 1.0, 1.0)),
        ),
        (
            situation(world_size=2, changes=[(0, 2), (50, 1)], now_s=50, seconds={}),
            "resize",
            1,
            sizing.WorkersLeave(room=1, move=move(2, 1, 24, 48)),
        ),
        (
            situation(world_size=4, changes=[(0, 4), (50, 2)], now_s=50, workers_min=3),
            "pause",
            0,
            sizing.TooLittleRoom(room=2, least=3),
        ),
        (
            situation(world_size=4, changes=[(0, 4), (50, 8)], now_s=50, seconds={}),
            "wait",
            4,
            sizing.RoomJustChanged(move=move(4, 8, 12, 6), wait_s=pytest.approx(1.4)),
        ),
        (
            situation(world_size=4, changes=[(0, 4), (50, 8)], now_s=51.4, seconds={}),
            "resize",
            8,
            sizing.PaysByPlan(move=move(4, 8, 12, 6)),
        ),
        (
            situation(world_size=4, changes=[(0, 4), (50, 5)], now_s=90, seconds={}),
            "wait",
            4,
            sizing.NotMeasured(move=move(4, 5, 12, 10), least=1.5),
        ),
        (
            situation(world_size=4, changes=[(0, 4), (50, 5)], now_s=51),
            "wait",
            4,
            sizing.MoreMayCome(move=move(4, 5, 12, 10, 1.0, 0.833), wait_s=pytest.approx(0.4)),
        ),
        (
            situation(
                world_size=4, changes=[(0, 4), (50, 5), (60, 4), (70, 5)], now_s=72, cost=NEW_PROCESSES, workers_max=5
            ),
            "wait",
            4,
            sizing.StaysTooShort(
                move=move(4, 5, 12, 10, 1.0, 0.833),
                wait_s=pytest.approx(10.5),
                num_short=1,
                num_times=1,
                break_even_s=pytest.approx(89.3),
                pauses_s=16,
            ),
        ),
        (
            situation(
                world_size=4,
                changes=[(0, 5)],
                now_s=7200,
                cost=ResizeCost(grow_s=60, shrink_s=100, lead_s=20),
                forced=ForcedRestarts(since_s=0, times=tuple(range(6500, 7300, 100))),
            ),
            "wait",
            4,
            sizing.RestartsTooOften(
                move=move(4, 5, 12, 10, 1.0, 0.833),
                wait_s=pytest.approx(245),
                expected_s=pytest.approx((700 + 3600) / 9),
                needed_s=pytest.approx(505),
            ),
        ),
    ],
)
def test_the_reason_has_the_numbers(now, kind, world_size, reason):
    """As the ledger will have them."""
    decision = revise(now)
    assert (decision.kind, decision.world_size, decision.reason) == (kind, world_size, reason)


def test_nodes_that_come_one_after_another_get_one_resize():
    """Each waits a pause for the next one. The last one that the job can use does not wait."""
    changes = [(0, 2), (50, 3), (51, 4)]
    waits = revise(situation(world_size=2, changes=changes[:2], now_s=50))
    assert (waits.kind, waits.until_s) == ("wait", 51.4)
    assert revise(situation(world_size=2, changes=changes, now_s=51, workers_max=4)).kind == "resize"
    # 25 samples one after another become 13. At exactly twice the speed, waiting costs as much as it brings.
    assert revise(situation(world_size=2, changes=changes, now_s=51, global_batch=50)).until_s == pytest.approx(52.4)


def test_a_steady_part_of_the_newcomers_is_taken_without_the_part_that_flaps():
    """6 have come and stay. 7 come and go."""
    changes = [(0, 4), *((100 + second, 6 + second % 2) for second in range(20))]
    decision = revise(situation(world_size=4, changes=changes, now_s=119, cost=NEW_PROCESSES))
    assert (decision.kind, decision.world_size) == ("resize", 6)


def test_newcomers_that_leave_during_the_lead_cost_nothing():
    """Room that comes for 10 s at a time is worth a try if the pause begins only after 11."""
    flaps = [(10.0 * k, 4 + k % 2) for k in range(10)]
    patient = ResizeCost(grow_s=8, shrink_s=8, lead_s=11)
    assert revise(situation(world_size=4, changes=flaps, now_s=90, cost=patient, workers_max=5)).kind == "resize"
    assert revise(situation(world_size=4, changes=flaps, now_s=90, cost=NEW_PROCESSES, workers_max=5)).kind == "wait"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"changes": []}, "the capacity history is empty"),
        ({"changes": [(5, 4), (4, 5)]}, "in order of time"),
        ({"changes": [(11, 4)]}, "not in order of time up to now"),
        ({"changes": [(0, -1)]}, "has a count below 0"),
        ({"remaining_steps": -1}, "remaining_steps=-1"),
        ({"workers_min": 0}, "workers_min=0"),
        ({"workers_min": 5, "workers_max": 4}, "workers_max=4"),
    ],
)
def test_impossible_situations_are_refused(wrong, message):
    """With what is wrong about them."""
    with pytest.raises(ValueError, match=message):
        situation(**{"world_size": 4, "changes": [(0, 4)], "now_s": 10, **wrong})


@pytest.mark.parametrize("wrong", [-1.0, math.inf, math.nan])
def test_impossible_costs_are_refused(wrong):
    """A resize takes a finite time."""
    with pytest.raises(ValueError, match="the times of a resize must be finite and 0 s or more"):
        ResizeCost(grow_s=wrong, shrink_s=1.0)


def test_nothing_is_worth_asking_of_nobody():
    """The bound is said."""
    with pytest.raises(ValueError, match="no workers to choose from: 0"):
        worth_asking(Balanced(global_batch=8, world_size=1, max_micro=8), 0)


@pytest.mark.parametrize(("usable", "kind"), [(8, "resize"), (2, "resize")])
def test_on_one_machine_a_step_time_that_nobody_measured_is_told_as_what_it_is(usable, kind):
    """Nodes that share one machine's cores make nothing faster. A rehearsal resizes as if they did not share them."""
    alone = situation(world_size=4, changes=[(0, 4), (50, usable)], now_s=500)
    shared = replace(alone, speeds=replace(alone.speeds, on_one_machine=True))
    assert revise(shared).kind == revise(alone).kind == kind
    assert revise(shared).reason.move.on_one_machine
    assert not revise(alone).reason.move.on_one_machine


@pytest.mark.parametrize("workers_max", [8, 64])
def test_places_that_nobody_would_use_do_not_keep_a_growth_waiting(workers_max):
    """Before the first measurement, G=48: 9 workers are as fast as 8, and more than 8 may be forbidden."""
    room = [(0.0, 2), (10.0, 8), *((10.5 + 0.5 * i, 8 + (i + 1) % 2) for i in range(20))]
    decision = revise(situation(world_size=2, changes=room, now_s=20.5, seconds={}, workers_max=workers_max))
    assert (decision.kind, decision.world_size) == ("resize", 8)


def test_room_that_went_with_the_groups_own_nodes_says_nothing_against_more():
    """8 + 8 workers, 40 s at a time. A group of 8 on the oldest nodes is hit by each loss, or by none."""

    def decided(steady):
        times = [(start_s, size) for start_s in range(0, 600, 100) for size in (16, 8)][:-1]
        changes = [
            CapacityAt(time_s=start_s + (40 if size == 8 else 0), world_size=size, steady=steady if size == 8 else None)
            for start_s, size in times
        ]
        cost = ResizeCost(grow_s=30, shrink_s=30)
        now = situation(world_size=8, changes=[(0, 16)], now_s=501, cost=cost, global_batch=64, workers_max=16)
        return revise(replace(now, capacity=tuple(changes))).kind

    assert decided(steady=0) == "resize"
    assert decided(steady=8) == decided(steady=None) == "wait"
