"""When the ledger is told of the cluster's nodes."""

from planner.dispatch.capacity_log import CapacityLog
from planner.elastic.view import View
from planner.events.capacity import Leaving

A, B, C = (letter * 56 for letter in "abc")


def told(log, room, draining=None, nodes=(), time_s=5.0):
    return log.changed(View(room=room, draining=draining or {}, nodes=nodes), time_s)


def test_nodes_are_told_when_they_change():
    """With the first digits of their ids, and without those that hold no worker."""
    log = CapacityLog()
    found = told(log, {B: 2, A: 2, C: 0})
    assert (found.time_s, found.nodes, found.places, found.leaving) == (5.0, ("a" * 10, "b" * 10), 4, ())
    assert told(log, {A: 2, B: 2, C: 0}) is None
    assert told(log, {A: 2, B: 2, C: 2}).places == 6
    assert told(log, {A: 2, B: 1, C: 2}).places == 5


def test_a_notice_is_told_with_the_time_that_is_left():
    """Once, as long as the nodes are the same. A node that holds no worker does not matter, unless the group has it."""
    log = CapacityLog()
    told(log, {A: 1, B: 1})
    found = told(log, {A: 1}, {B: 30.0, C: 5.0})
    assert (found.nodes, found.leaving) == (("a" * 10,), (Leaving(node="b" * 10, left_s=30.0),))
    assert told(log, {A: 1}, {B: 29.0, C: 4.0}) is None
    assert [each.left_s for each in told(log, {}, {B: 20.0, A: float("inf")}).leaving] == [None, 20.0]
    assert told(log, {}, {B: 1.0}).leaving == (Leaving(node="b" * 10, left_s=1.0),)
    assert told(CapacityLog(), {}, {C: 9.0}, nodes=(C,)).leaving == (Leaving(node="c" * 10, left_s=9.0),)


def test_a_group_that_starts_is_told_again():
    """The last group may not have written it."""
    log = CapacityLog()
    told(log, {A: 1})
    log.forget()
    assert told(log, {A: 1}).nodes == ("a" * 10,)
    assert told(log, {A: 1}) is None


def test_room_that_changes_at_every_look_fills_no_ledger():
    """A busy cluster is told about twice a minute. The start of a group is told whatever came before."""
    log, looks = CapacityLog(), range(2 * 3600)
    found = [told(log, {A: 1 + look % 2}, time_s=1000 + look / 2) for look in looks]
    assert 100 < sum(each is not None for each in found) < 200
    assert all(found[:40])
    log.forget()
    assert told(log, {A: 1}, time_s=4600.0)
    assert not told(log, {A: 2}, time_s=10.0)  # the clock was set back
    assert told(log, {A: 2}, time_s=41.0)
