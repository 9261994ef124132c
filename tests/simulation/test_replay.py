"""A run's ledger as a trace: its nodes, its own times, and its own row."""

import math
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import BEGAN_S, commit, evaluation, header, measurement, step

from planner.events.capacity import Capacity, Leaving
from planner.events.event import facts_of
from planner.events.failures import NodesLost
from planner.events.sizing import Move, Pays, PlacesUnused, Resizes, Waited
from planner.events.stopping import Notice
from planner.plan import WorkerRange
from planner.provenance.run_times import RunClock
from planner.simulation.replay import replay_of
from planner.simulation.trace import NodeEvent
from planner.store.records import EventRecord
from planner.story.capacity import CapacityFold
from planner.wording.event_text import text_of

WORKERS = WorkerRange(least=1, most=64)
NO_START = {"restart_s": 0.0}


def noted(event, at_s):
    """An event's record, so many seconds after the run began."""
    return EventRecord(event=event.name, facts=facts_of(event), message=text_of(event), time_s=BEGAN_S + at_s)


def seen(at_s, nodes, leaving=(), per_node=1, written_s=None):
    """The record of the nodes at a time. It may be written later."""
    event = Capacity(
        time_s=BEGAN_S + at_s,
        nodes=tuple(nodes),
        places=len(nodes) * per_node,
        leaving=tuple(Leaving(node=node, left_s=left_s) for node, left_s in leaving),
    )
    return noted(event, at_s if written_s is None else written_s)


def replayed(records, given=None):
    fold, clock = CapacityFold(), RunClock()
    for record in records:
        clock.add(record)
        fold.add(record, clock)
    return replay_of(fold.capacity(clock), WORKERS, given)


def begun(number, workers, first_step, at_s, **changed):
    return header(number, workers, first_step, time_s=BEGAN_S + at_s, launch_id="a", **changed)


def nodes_over_time(replay):
    return [(row.time_s, row.nodes) for row in replay.trace.rows]


def growth():
    """Resizes from 2 to 3 at 80 s. The next group trains from 92 s, the old one until 90 s."""
    move = Move(size=2, to=3, samples=4, to_samples=3, step_s=1.0, to_step_s=0.5, on_one_machine=False)
    return noted(Resizes(to=3, reason=Pays(move=move, win_back_s=1.0, pause_s=1.0, remaining_s=1.0)), 80)


# -- the nodes


END_S = 60
Lives = st.lists(
    st.tuples(
        st.integers(0, 50),  # comes
        st.integers(1, 30),  # stays so long
        st.one_of(st.none(), st.integers(0, 20)),  # has notice so long before, if it has one
    ),
    min_size=1,
    max_size=8,
).filter(lambda lives: any(came == 0 for came, _, _ in lives))


@given(Lives)
def test_a_ledger_with_a_known_trace_gives_it_back(lives):
    """Whatever comes, goes and has notice while the group trains."""
    known, changes = [], {0}
    for number, (came, stays, notice) in enumerate(lives):
        goes, told = came + stays, None if notice is None else max(came + stays - notice, came)
        told = None if told is None or goes >= END_S or told == goes else told
        known.append((f"n{number}", came, goes, told))
        changes |= {at for at in (came, goes, told) if at is not None and at < END_S}
    records = [begun(1, 1, 0, 0)]
    for at in sorted(changes):
        here = [(node, goes, told) for node, came, goes, told in known if came <= at < goes]
        leaving = [(node, float(goes - at)) for node, goes, told in here if told is not None and told <= at]
        records.append(seen(at, [node for node, _, _ in here if node not in dict(leaving)], leaving, written_s=0))
    replay = replayed([*records, *map(step, range(END_S))], NO_START)
    events = {
        *(NodeEvent(time_s=came, event="add", node=node) for node, came, _, _ in known),
        *(NodeEvent(time_s=goes, event="remove", node=node) for node, _, goes, _ in known if goes < END_S),
        *(NodeEvent(time_s=told, event="notice", node=node) for node, _, _, told in known if told is not None),
    }
    assert set(replay.trace.events) == events
    assert len(replay.trace.events) == len(events)
    assert replay.is_exact
    assert replay.trace.end_s == END_S
    counts = {at: sum(came <= at < goes for _, came, goes, _ in known) for at in changes}
    rows = dict(nodes_over_time(replay)[:-1])
    assert all(counts[at] == rows[at] for at in rows)


def test_a_node_that_was_given_back_early_goes_when_its_notice_is_over():
    """The group left it, so the cloud took it. Another group would have had it."""
    records = [
        begun(1, 2, 0, 0),
        seen(0, "ab"),
        *map(step, range(20)),
        seen(20, "a", [("b", 30.0)]),
        begun(2, 1, 20, 22, parent="x"),
        seen(22, "a", [("b", 28.0)]),
        seen(24, "a"),
        *map(step, range(20, 80)),
    ]
    replay = replayed(records)
    assert replay.measured.restart_s == 4
    # The trace begins a usual pause before the first step.
    assert nodes_over_time(replay) == [(0, 2), (54, 1), (88, 1)]
    assert [life.told_s for life in replay.lives.lives] == [math.inf, 24]


def test_a_lost_node_went_when_the_last_step_was_done():
    """It was seen later. What was seen while no group ran is written by the next one."""
    records = [
        begun(1, 2, 0, 0),
        seen(0, "ab"),
        *map(step, range(20)),
        begun(2, 1, 20, 27, parent="x"),
        seen(26, "a", written_s=27),
        noted(NodesLost(nodes=1, told=0, from_memory=True), 27),
        *map(step, range(20, 40)),
    ]
    replay = replayed(records)
    assert nodes_over_time(replay) == [(0, 2), (27, 1), (54, 1)]  # 7 s of pause, then 20 steps
    assert (replay.own.losses, replay.measured.detect_s) == (1, 0)


def test_nodes_of_several_workers():
    """All hold as many, or their mean counts."""
    steps = list(map(step, range(20)))
    even = replayed([begun(1, 4, 0, 0), seen(0, "ab", per_node=4), seen(9, "a", per_node=4), *steps])
    assert (even.speed.node_workers, even.is_even) == (4, True)
    odd = seen(0, "ab").model_copy(update={"facts": {**seen(0, "ab").facts, "places": 5}})
    uneven = replayed([begun(1, 4, 0, 0), odd, *steps])
    assert (uneven.speed.node_workers, uneven.is_even) == (2, False)


def test_without_a_record_of_nodes_groups_tell():
    """Sizes, newcomers, unused places, a notice and a loss. Each worker is a node."""
    records = [
        begun(1, 2, 0, 0),
        *map(step, range(90)),
        growth(),
        begun(2, 3, 90, 92, parent="x"),
        *map(step, range(90, 98)),
        noted(PlacesUnused(size=3, places=4, reasons=()), 100),
        *map(step, range(98, 150)),
        noted(Notice(leaving=1, size=3, left_s=20.0, room=3, obstacle=None), 152),
        begun(3, 3, 150, 154, parent="x"),
        *map(step, range(150, 200)),
        begun(4, 2, 200, 210, parent="x"),
        noted(NodesLost(nodes=1, told=0, from_memory=False), 210),
        noted(Waited(waited_s=3.0), 210),
        *map(step, range(200, 230)),
    ]
    replay = replayed(records)
    assert not replay.is_exact
    # 2 s before the first step, the trace begins.
    assert nodes_over_time(replay) == [(0, 2), (82, 4), (174, 3), (206, 0), (212, 2), (242, 2)]
    assert [life.told_s for life in replay.lives.lives if life.has_notice] == [154]
    assert replay.own.idle_s == 3


# -- times


def test_the_run_s_own_times_are_the_costs():
    """Medians of what it measured. What it has not measured is assumed, and what is given counts."""
    records = [
        begun(1, 2, 0, 0),
        step(0, seconds=3.0),
        *(step(number) for number in range(1, 88)),
        growth(),
        commit(88, seconds=0.25),
        begun(2, 3, 88, 92.25, parent="x"),
        step(88, seconds=2.0),
        *(step(number, seconds=0.5) for number in range(89, 100)),
    ]
    replay = replayed(records)
    measured = replay.measured
    # From 90.25 s to 92.25 s, and 1.5 s of a slow first step.
    assert (measured.restart_s, measured.save_s, measured.lead_s, measured.detect_s) == (3.5, 0.25, 10.25, None)
    assert replay.costs.detect_s == 5.0
    assert replay.cold_s == 13.75
    assert replay.sizes == (2, 3)
    assert [replay.speed.seconds(size) for size in (2, 3)] == [1.0, 0.5]
    assert replay.own.changes[0].time_s == 3.5
    other = replayed(records, {"lead_s": 7.0, "detect_s": 1.0})
    assert (other.costs.lead_s, other.costs.detect_s, other.costs.save_s) == (7, 1, 0.25)


def test_a_start_that_is_assumed_takes_the_run_as_long_as_the_policies():
    """Or the run would look better than all of them."""
    replay = replayed([begun(1, 2, 0, 0), *map(step, range(600))])
    assert replay.measured.restart_s is None
    assert replay.own.paused_s == replay.play("optimum").paused_s == 60
    assert replay.own.useful_over_ideal <= replay.play("optimum").useful_over_ideal + 1e-9


def test_what_happens_between_two_steps_is_part_of_them():
    """Measurements have a time of their own. So copies count, and a late first step is a pause."""
    late = 4.0
    records = [begun(1, 2, 0, 0), step(0), *map(step, range(1, 10)), measurement(10, BEGAN_S + late + 10)]
    records += [*map(step, range(10, 20)), measurement(20, BEGAN_S + late + 22)]
    replay = replayed(records, NO_START)
    assert replay.trace.end_s == 22
    assert replay.speed.seconds(2) == pytest.approx(21 / 19)


def test_without_its_first_steps_a_group_ends_when_a_record_says_so():
    """`planner show` reads the ends of segments. Without a record that has a time, nothing says when they were."""

    def capacity(*more):
        fold, clock = CapacityFold(), RunClock()
        for record in (begun(1, 2, 0, 0), *map(step, range(100, 110)), *more):
            clock.add(record)
            fold.add(record, clock)
        return fold.capacity(clock)

    assert not capacity().is_timed
    found = capacity(measurement(110, BEGAN_S + 220))
    assert found.is_timed
    assert (found.groups[0].start_s, found.groups[0].end_s) == (BEGAN_S, BEGAN_S + 220)
    assert found.groups[0].step_s == pytest.approx(220 / 109)


def test_evaluations_are_shared_among_the_steps():
    """Each policy has them as often. One before the first step is part of the start."""
    records = [begun(1, 2, 0, 0), evaluation(0), *map(step, range(5)), evaluation(5)]
    assert replayed(records).speed.seconds(2) == pytest.approx(1 + 0.25 / 5)


def test_the_own_row_adds_up():
    """Steps that were lost are no steps, and the time between two launches is left out."""
    records = [
        begun(1, 2, 0, 0),
        *map(step, range(30)),
        commit(20),
        header(2, 2, 20, time_s=BEGAN_S + 5000, launched_s=BEGAN_S + 4990, launch_id="b", parent="x"),
        *map(step, range(20, 60)),
    ]
    replay = replayed(records, NO_START)
    own = replay.own
    assert (own.policy, own.steps, own.redone_s, own.commit_s) == ("run", 60, 10, 0.5)
    assert own.total_s == pytest.approx(replay.trace.end_s) == pytest.approx(70.5)
    assert own.ideal_steps == pytest.approx(70.5)
    assert [change.what for change in own.changes] == ["starts", "starts"]


@pytest.mark.parametrize("records", [[], [begun(1, 2, 0, 0)], [begun(1, 2, 0, 0), step(0)], [step(0), step(1)]])
def test_without_a_typical_step_there_is_no_replay(records):
    """The first one of each group does not count."""
    assert replayed(records) is None


def test_a_forged_number_of_places_makes_no_endless_trace():
    """More nodes than can be played are not made."""
    records = [begun(1, 2, 0, 0), noted(PlacesUnused(size=2, places=10**15, reasons=()), 1), *map(step, range(9))]
    assert replayed(records).lives.peak == 20_000


def test_policies_without_newcomers_pay_for_starts_of_processes():
    """Of planner, newcomers start beside the group."""
    records = [begun(1, 2, 0, 0), seen(0, "ab"), seen(300, "abc", written_s=0), *map(step, range(900))]
    replay = replayed(records, {"restart_s": 2.0, "lead_s": 100.0})
    found = {name: replay.play(name) for name in ("ours", "stock", "optimum")}
    assert found["stock"].paused_s == 204
    assert found["ours"].paused_s == 4
    steps = {name: outcome.useful_over_ideal for name, outcome in found.items()}
    assert steps["optimum"] >= steps["ours"] > steps["stock"]
    assert [group for group, _ in groupby(each.what for each in found["stock"].changes)] == ["starts"]


@pytest.mark.parametrize("policy", ["stock", "fixed"])
def test_a_clock_that_was_set_forward_in_a_loss_costs_no_look_per_second(policy):
    """By the ledger, the loss was noticed after 5 years."""
    jump_s = 5 * 365 * 86400
    records = [begun(1, 2, 0, 0), seen(0, "ab"), *map(step, range(60)), measurement(60, BEGAN_S + 60)]
    lost = noted(NodesLost(nodes=1, told=0, from_memory=False), jump_s)
    records += [begun(2, 1, 60, jump_s), seen(jump_s, "a"), lost]
    records += [*map(step, range(60, 90)), measurement(90, BEGAN_S + jump_s + 30)]
    replay = replayed(records, {"restart_s": 1.0, "detect_s": jump_s - 90.0})
    assert replay.play(policy).resizes <= 2
