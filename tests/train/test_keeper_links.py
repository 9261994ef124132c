"""Connections to keepers that go and come back, with real keepers and a clock of the test."""

import pytest
from events import EVENT_S

from planner.events.saves import KeeperFound, KeeperLost
from planner.keeper.addresses import Keepers
from planner.keeper.errors import KeeperFull, KeeperGone
from planner.keeper.server import Keeper
from planner.train.keeper_links import KeeperLinks

SECRET = "open-sesame-0123456789"


class Place:
    """A cluster of keepers on this machine, and the time."""

    def __init__(self):
        self.now_s, self.keepers, self.asked = 0.0, {}, 0

    def start(self, node):
        self.keepers[node] = Keeper(bound_bytes=10**6, secret=SECRET)

    def end(self, node):
        self.keepers.pop(node).close()

    def find(self):
        self.asked += 1
        addresses = tuple(keeper.address_on(node) for node, keeper in self.keepers.items())
        return Keepers(node="a", addresses=addresses, secret=SECRET)

    def links(self, replica_on=""):
        return KeeperLinks(self.find(), replica_on, self.find, lambda: self.now_s)

    def later(self, links, seconds=11.0):
        """Time passes, and what was begun then is done."""
        self.now_s += seconds
        links.advance()
        if links._search is not None:
            links._search.join(EVENT_S)
            assert not links._search.is_alive()
        links.advance()


@pytest.fixture
def place():
    made = Place()
    yield made
    for node in list(made.keepers):
        made.end(node)


def test_a_keeper_that_comes_later_is_found(place):
    """It is asked for every ten seconds, and never again once it is there."""
    links = place.links()
    assert not links.is_up
    place.later(links, 5.0)
    assert place.asked == 1
    place.start("a")
    place.later(links)
    assert links.is_up
    assert links.take_events() == [KeeperFound()]
    place.later(links)
    assert place.asked == 2
    links.close(is_publishing=False)


def test_a_keeper_that_is_lost_is_replaced(place):
    """Both are said once."""
    place.start("a")
    links = place.links()
    assert (links.is_up, links.take_events()) == (True, [])
    place.end("a")
    for _ in range(2):
        links.lose(KeeperGone("it is gone"))
    assert not links.is_up
    assert links.take_events() == [KeeperLost(is_full=False, reason="it is gone")]
    place.later(links)
    assert not links.is_up
    place.start("a")
    place.later(links)
    assert links.is_up
    links.close(is_publishing=False)


def test_a_full_keeper_is_not_asked_again(place):
    """It would be full again."""
    place.start("a")
    links = place.links()
    links.lose(KeeperFull("it is full"))
    place.later(links)
    assert not links.is_up
    assert place.asked == 1
    assert links.take_events() == [KeeperLost(is_full=True, reason="it is full")]
    links.close(is_publishing=False)


def test_a_full_keeper_is_asked_again_when_older_copies_are_freed(place):
    """Two generations may not have room beside each other, and one does. The same for replicas."""
    place.start("a")
    place.start("b")
    links = place.links(replica_on="b")
    links.lose(KeeperFull("it is full"))
    links.lose_replica(links.replica, KeeperFull("it is full"))
    place.later(links)
    assert (links.is_up, links.replica) == (False, None)
    links.try_again()
    place.later(links)
    assert links.is_up
    assert links.replica == place.keepers["b"].address_on("b")
    links.close(is_publishing=False)


def test_replicas_wait_for_another_keeper_of_their_node(place):
    """The same address is tried again only after a minute."""
    place.start("a")
    place.start("b")
    links = place.links(replica_on="b")
    before = links.replica
    assert before == place.keepers["b"].address_on("b")
    links.lose_replica(before, KeeperGone("it is gone"))
    assert links.replica is None
    place.later(links)
    assert links.replica is None
    place.later(links, 60.0)
    assert links.replica == before
    links.lose_replica(before, KeeperGone("it is gone"))
    place.end("b")
    place.start("b")
    place.later(links)
    assert links.replica == place.keepers["b"].address_on("b") != before
    links.close(is_publishing=False)


def test_without_keepers_nobody_is_asked():
    """As with `checkpoint.memory: off`."""

    def never():
        raise AssertionError

    links = KeeperLinks(None, "", never, lambda: 1e9)
    links.advance()
    assert (links.is_up, links.replica, links._search) == (False, None, None)


def test_an_error_of_the_search_is_no_error_of_training(place):
    """The next one may succeed."""
    links = KeeperLinks(place.find(), "", lambda: 1 / 0, lambda: place.now_s)
    place.later(links)
    place.start("a")
    links._find = place.find
    place.later(links)
    assert links.is_up
    links.close(is_publishing=False)
