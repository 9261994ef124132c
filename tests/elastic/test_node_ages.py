"""What a loss leaves of a group on the oldest nodes."""

from planner.elastic.history import History
from planner.elastic.node_ages import NodeAges
from planner.plan import BatchSizes
from planner.plan.forced_restarts import ForcedRestarts
from planner.plan.growth import ResizeCost


def room(*names, workers=1):
    return dict.fromkeys(names, workers)


def aged(*looks):
    """Nodes as seen at 0 s, 1 s and so on."""
    ages = NodeAges()
    for second, names in enumerate(looks):
        ages = ages.seen(room(*names), float(second))
    return ages


def test_workers_on_older_nodes_would_not_have_been_hit():
    """`c` came last, and `b` before it."""
    ages = aged("a", "ab", "abc")
    assert ages.steady(room("a", "b")) == 2
    assert ages.steady(room("a", "c")) == 1
    assert ages.steady(room("b", "c")) == 0
    assert ages.steady(room("a", "b", workers=8)) == 16
    assert ages.steady(room()) == 0


def test_nodes_that_came_together_are_hit_together():
    """No group on the oldest nodes could have chosen those that stay."""
    assert aged("abcd").steady(room("a", "b", "c")) == 0


def test_a_node_that_comes_back_is_a_new_one():
    """It has run nothing since."""
    ages = aged("ab", "b", "ab")
    assert ages.since_s == {"a": 2.0, "b": 0.0}
    assert ages.steady(room("a", "b", "c")) is None


def history():
    cost = ResizeCost(grow_s=1.0, shrink_s=1.0)
    return History(sizes=BatchSizes(global_batch=64, max_micro=8), default_cost=cost)


def test_each_fall_of_the_room_says_what_was_steady():
    """A replacement between two looks makes the new node the youngest, and changes no count."""
    seen = history().with_room(room("a", "b"), 0, 0.0).with_room(room("a", "b", "c"), 0, 10.0)
    seen = seen.with_room(room("a", "b", "d"), 0, 20.0).with_room(room("a", "b"), 0, 30.0)
    assert [(change.world_size, change.steady) for change in seen.capacity] == [(2, None), (3, None), (2, 2)]
    assert seen.forced == ForcedRestarts(since_s=0.0)


def test_a_group_whose_node_has_just_died_keeps_its_places_until_its_workers_fail():
    """Then the fall says what the loss left."""
    before = history().with_room(room("a", "b"), 0, 0.0).with_room(room("a", "b", "c"), 0, 10.0)
    unaware = before.with_room(room("a", "b"), 3, 20.0)
    assert unaware.capacity == before.capacity
    after = unaware.with_room(room("a", "b"), 0, 25.0)
    assert (after.capacity[-1].world_size, after.capacity[-1].steady) == (2, 2)


def test_a_group_is_restarted_by_force_once():
    """Also where its node dies before it has answered the notice."""
    told = history().after_forced(5.0, 10.0).after_forced(5.0, 11.0)
    assert told.forced == ForcedRestarts(since_s=5.0, times=(10.0,))
    assert told.after_forced(12.0, 20.0).forced == told.forced.after(20.0)
