"""A run that leaves places unused says why: once per reason and size, whatever the reason is."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_cluster import Blocking, Cluster
from test_next_decision import Seen, said

from planner.elastic.places import is_news, key_of
from planner.events import sizing
from planner.events.failures import Held
from planner.events.sizing import PlacesUnused
from planner.events.stopping import NewcomersCalledOff


def told(cluster):
    return cluster.told(PlacesUnused)


def kinds(found):
    return [type(reason) for reason in found.reasons]


def test_nothing_is_told_if_all_places_are_used():
    """Also after nodes have come and gone."""
    cluster = Cluster(4).run(60)
    cluster.add()
    cluster.run(60)
    cluster.drain("n0", 30)
    assert told(cluster.run(60))[1:] == []
    assert cluster.sizes == [4, 5, 4]
    assert [kinds(found) for found in told(cluster)] == [[sizing.MoreMayCome]]


def test_workers_that_would_not_make_a_step_shorter_are_told():
    """13 workers compute 4 samples one after another, like 12."""
    cluster = Cluster(13).run(60)
    reason = sizing.NotNeeded(size=12, room=13, samples=4)
    assert told(cluster) == [PlacesUnused(size=12, places=13, reasons=(reason,))]


FOUR_OF_SIX = PlacesUnused(size=4, places=6, reasons=(sizing.WorkersMax(most=4),))


def test_the_bound_of_the_job_is_told():
    """`workers.max` is below the room. It is not blamed for places that would help nobody."""
    assert told(Cluster(6, most=4).run(60)) == [FOUR_OF_SIX]


def test_the_global_batch_is_told_if_it_is_the_bound():
    """A worker without a sample would only take part in collectives."""
    (found,) = told(Cluster(6, global_batch=4, most=4).run(60))
    assert found.reasons == (sizing.GlobalBatchUsedUp(samples=4),)


def test_the_end_of_a_run_is_told_as_a_reason_to_keep():
    """The pause would not be won back."""
    cluster = Cluster(2, total_steps=13, grow_s=9.0).run(5)
    cluster.add()
    *_, found = told(cluster.run(10))
    (reason,) = found.reasons
    assert (found.size, found.places, type(reason)) == (2, 3, sizing.NotWonBack)
    assert (reason.move.size, reason.move.to, reason.pause_s) == (2, 3, 9)
    assert (reason.move.step_s, reason.move.to_step_s) == pytest.approx((2.4, 1.6))


def test_a_second_reason_is_told_although_the_room_stays():
    """First nothing was measured. Then the rest of the run is too short."""
    cluster = Cluster(3, global_batch=240, sample_s=5.0, total_steps=5, grow_s=1000.0).run(30)
    cluster.add()
    first, second = told(cluster.run(2500, tick_s=1))
    assert kinds(first) == [sizing.NotMeasured]
    assert kinds(second) == [sizing.NotWonBack]
    assert cluster.sizes == [3]


def test_two_reasons_are_told_together():
    """Of eight places the job may use six, and for a fifth worker a step is not shorter by enough yet."""
    cluster = Cluster(4, global_batch=240, sample_s=5.0, most=6).run(30)
    cluster.add(4)
    (found,) = told(cluster.run(20))
    bound, reason = found.reasons
    assert bound == sizing.WorkersMax(most=6)
    assert (found.size, found.places, reason.move.to, reason.move.to_samples) == (4, 8, 6, 40)
    assert reason.move.step_s is reason.move.to_step_s is None


def test_a_hold_is_told_with_its_cause_and_not_again():
    """The text about the newcomers that failed says how many workers are used. The next decision says it as long."""
    cluster = type("SeenBlocking", (Blocking, Seen), {})(2, newcomers="failing").run(30)
    cluster.add()
    cluster.run(20)
    (called_off,) = cluster.told(NewcomersCalledOff)
    assert isinstance(called_off.reason, Held)
    assert (called_off.reason.most, called_off.reason.hold_s) == (2, 30)
    assert not any(sizing.OnHold in kinds(found) for found in told(cluster))
    assert [kinds(found) for found in said(cluster).events] == [[sizing.OnHold]]


def test_a_node_that_is_left_out_is_told_with_the_places():
    """Once, however long it stays."""
    cluster = Cluster(4).run(30)
    for _ in range(3):
        cluster.committed = cluster.step
        cluster.fail(blamed={"n2"})
        cluster.run(30)
    left_out = sizing.NodesLeftOut(nodes=("n2",))
    assert told(cluster.run(600)) == [PlacesUnused(size=3, places=4, reasons=(left_out,))]


def test_a_rehearsal_has_nothing_to_tell():
    """It changes its size by its own rule."""
    cluster = Cluster(6, most=4)
    cluster.controller = cluster.new_controller(eager=True)
    assert told(cluster.run(60)) == []
    assert cluster.sizes == [4]


def test_the_next_decision_names_the_places():
    """As they were told, as long as it holds."""
    assert said(Seen(6, most=4).run(60)).events == (FOUR_OF_SIX,)


def test_a_reason_that_nobody_could_write_down_is_told_to_the_next_group():
    """A group writes its notes at its next step. This one died before it had done any."""
    cluster = Cluster(6, most=4).run(1)
    assert cluster.step == 0
    assert len(told(cluster)) == 1
    cluster.fail(dead={"n0"})
    assert len(told(cluster.run(60))) == 2
    cluster.committed = cluster.step
    cluster.fail(dead={"n1"})
    assert len(told(cluster.run(60))) == 2


def test_two_days_on_a_cluster_that_changes_every_minute_fills_no_ledger():
    """The reason is one. Only twice as many unused places are news."""
    dice, cluster = random.Random(7), Cluster(5, most=4, sample_s=1.0)
    for _ in range(2 * 24 * 60):
        cluster.nodes = [f"n{number}" for number in range(dice.randint(5, 40))]
        cluster.run(60, tick_s=60)
    assert cluster.sizes == [4]
    assert 1 <= len(told(cluster)) <= 6


REASONS = [
    sizing.WorkersMax(most=4),
    sizing.GlobalBatchUsedUp(samples=4),
    sizing.NodesLeftOut(nodes=("a",)),
    sizing.UsesAll(size=4),
    sizing.NotNeeded(size=3, room=4, samples=2),
]


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 1000), st.sets(st.sampled_from(REASONS), min_size=1, max_size=2)),
        max_size=60,
    )
)
def test_each_reason_is_told_at_each_size_and_seldom_again(seen):
    """At first, and whenever twice as many places are unused. So at most ten times for a thousand places."""
    last, count = {}, {}
    for size, num_unused, reasons in seen:
        found = PlacesUnused(size=size, places=size + num_unused, reasons=tuple(reasons))
        key = key_of(found)
        if is_news(found, last):
            last = {**last, key: num_unused}
            count[key] = count.get(key, 0) + 1
        assert key in last
        assert num_unused < 2 * last[key] or num_unused == last[key]
    assert all(number <= 1 + math.log2(1000) for number in count.values())


@pytest.mark.parametrize("size", [1, 3])
def test_numbers_are_no_part_of_what_a_reason_is(size):
    """They change with time."""
    move = sizing.Move(size=size, to=4, samples=9, to_samples=8, step_s=None, to_step_s=None, on_one_machine=False)
    found = PlacesUnused(size=size, places=4, reasons=(sizing.MoreMayCome(move=move, wait_s=10.0),))
    told_before = {key_of(found): found.places - size}
    assert not is_news(replace(found, reasons=(sizing.MoreMayCome(move=move, wait_s=9.0),)), told_before)
    assert is_news(replace(found, size=2), told_before)
    assert is_news(replace(found, reasons=(sizing.NotMeasured(move=move, least=1.5),)), told_before)
