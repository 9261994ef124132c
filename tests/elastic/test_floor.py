"""The on-demand floor: a launch begins with it, and each group takes the places of on-demand nodes first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from message import Message

from planner.elastic.controller import ElasticController
from planner.elastic.floor import kept_workers, num_on_demand
from planner.elastic.states import Rules
from planner.elastic.view import View
from planner.events.stopping import FloorMissing, WaitsForFloor, WaitsForRoom
from planner.plan import BatchSizes, WorkerRange
from planner.plan.growth import ResizeCost

ALONE = {"a": "on-demand", "b": "spot", "c": "spot"}


def controller(least=1, floor=1, **options):
    rules = Rules(
        sizes=BatchSizes(global_batch=8, max_micro=8),
        workers=WorkerRange(least=least, most=8),
        has_eval=False,
        floor=floor,
    )
    return ElasticController(rules, cost=ResizeCost(grow_s=1.0, shrink_s=1.0), clock=lambda: 0.0, **options)


def view(room, markets=ALONE, nodes=()):
    return View(room=dict.fromkeys(room, 1), draining={}, markets=markets, nodes=tuple(nodes))


def test_a_launch_waits_for_its_on_demand_places_whatever_spot_offers():
    """It says so once. With the on-demand node it begins with all three."""
    launch = controller()
    waits = WaitsForFloor(room=0, least=1, other_room=2, has_labels=True)
    assert launch.step(view("bc")).events == (waits,)
    assert launch.step(view("bc")).events == ()
    assert launch.next_decision(view("bc")).events == (waits,)
    act = launch.step(view("abc"))
    assert (act.kind, act.world_size) == ("resize", 3)


def test_it_says_that_no_node_has_the_label():
    launch = controller(least=2, floor=2)
    (waits,) = launch.step(view("ab", markets={})).events
    assert waits == WaitsForFloor(room=0, least=2, other_room=2, has_labels=False)


def test_without_a_floor_any_node_will_do():
    act = controller(floor=0).step(view("bc"))
    assert (act.kind, act.world_size) == ("resize", 2)


@pytest.mark.parametrize("left", ["a", "bc"])
def test_a_launch_that_has_begun_goes_on_with_what_is_left(left):
    """On the floor alone if all spot nodes are lost, and on spot nodes alone if the floor is."""
    launch = controller()
    launch.step(view("abc"))
    launch.started(("a", "b", "c"))
    launch.failed(frozenset("abc") - frozenset(left), frozenset(), Message(text="it died"))
    act = launch.step(view(left))
    assert (act.kind, act.world_size) == ("resize", len(left))
    launch.started(tuple(left))
    told = [event for event in launch.events if isinstance(event, FloorMissing)]
    assert told == ([] if left == "a" else [FloorMissing(on_demand=0, least=1)])


def test_below_workers_min_it_waits_for_any_room():
    launch = controller(least=2, floor=2)
    launch.step(view("abc", markets={"a": "on-demand", "b": "on-demand"}))
    launch.started(("a", "b", "c"))
    launch.failed(frozenset("ab"), frozenset(), Message(text="they died"))
    assert WaitsForRoom(room=1, least=2) in launch.step(view("c")).events


def test_a_controller_that_replaces_another_one_does_not_wait_for_the_floor():
    """Its launch has begun."""
    assert controller(has_begun=True).step(view("bc")).kind == "resize"


NODES = "abcdef"
rooms = st.dictionaries(st.sampled_from(NODES), st.integers(1, 3), min_size=1)


def some_of(places):
    """Some of the places, in any order."""
    return st.tuples(st.permutations(places), st.integers(0, len(places))).map(lambda drawn: drawn[0][: drawn[1]])


@given(rooms, st.sets(st.sampled_from(NODES)), st.data())
def test_newcomers_take_on_demand_places_first(room, on_demand, data):
    """And no more than are free, beside workers that are there."""
    places = [node for node, count in room.items() for _ in range(count)]
    kept = data.draw(some_of(places))
    free = [*places]
    for node in kept:
        free.remove(node)
    count = data.draw(st.integers(0, len(free)))
    assert num_on_demand(kept, count, room, on_demand) == min(count, sum(node in on_demand for node in free))


@given(rooms, st.sets(st.sampled_from(NODES)), st.integers(0, 4), st.data())
def test_the_next_group_has_its_floor(room, on_demand, floor, data):
    """Of workers that stay and newcomers together, if the cluster has it; and no worker ends without need."""
    places = [node for node, count in room.items() for _ in range(count)]
    nodes = data.draw(some_of(places))
    size = data.draw(st.integers(max(floor, 1), max(len(places), floor, 1)))
    kept = kept_workers(nodes, size, room, on_demand, floor)
    stay = [nodes[number] for number in kept]
    assert kept == sorted(set(kept))
    come = num_on_demand(stay, size - len(stay), room, on_demand)
    there = sum(node in on_demand for node in places)
    found = sum(node in on_demand for node in stay) + come
    assert found >= min(floor, size, there)
    if floor == 0 or len(nodes) + floor <= size:
        assert len(kept) == min(size, len(nodes))
