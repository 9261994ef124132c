"""The note about lost nodes counts all of them, whenever Ray finds them, and none twice."""

import pytest
from message import Message

from planner.elastic.controller import ElasticController
from planner.elastic.states import Rules
from planner.elastic.view import View
from planner.events.failures import NodesLost, WorkersFailed
from planner.events.sizing import PlacesUnused
from planner.events.stopping import WaitsForRoom
from planner.plan import BatchSizes, WorkerRange
from planner.plan.growth import ResizeCost

DIED = Message(text="it died")


class Launch:
    """A controller, and nodes of which it sees the dead ones one by one."""

    def __init__(self, nodes, workers, least=1, *, starts=True):
        self.now_s = 0.0
        self.nodes, self.dead = [f"n{i}" for i in range(nodes)], []
        self.group, self.ledger, self.terminal = (), [], []
        rules = Rules(
            sizes=BatchSizes(global_batch=48, max_micro=8),
            workers=WorkerRange(least=least, most=workers),
            has_eval=False,
        )
        cost = ResizeCost(grow_s=1.0, shrink_s=1.0)
        self.controller = ElasticController(rules, cost=cost, clock=lambda: self.now_s)
        if starts:
            self.start()

    def look(self, after_s=0.5, draining=(), *, parked=False):
        self.now_s += after_s
        alive = [node for node in self.nodes if node not in self.dead and node not in draining]
        view = View(
            room=dict.fromkeys(alive, 1),
            draining=dict.fromkeys(draining, 30.0),
            dead=frozenset(self.dead),
            nodes=self.group,
            parked=frozenset(range(len(self.group))) if parked else frozenset(),
        )
        act = self.controller.step(view)
        losses = [event for event in act.events if not isinstance(event, PlacesUnused)]
        (self.ledger if self.group else self.terminal).extend(losses)
        return act

    def start(self):
        """A group starts and trains."""
        size = self.look().world_size
        self.group = tuple(node for node in self.nodes if node not in self.dead)[:size]
        self.controller.started(self.group)
        self.look()

    def fail(self, *found):
        """Nodes die with their workers. Only `found` are known to be dead now."""
        self.dead += found
        self.group = ()
        self.controller.failed(frozenset(found), frozenset(), DIED)

    def find(self, *nodes, after_s=0.5):
        """Ray finds more dead nodes."""
        self.dead += nodes
        self.look(after_s)


def lost(nodes, told=0):
    return NodesLost(nodes=nodes, told=told, from_memory=False)


def test_nodes_that_ray_finds_before_the_next_group_starts_are_in_one_note():
    launch = Launch(16, workers=16)
    launch.fail("n1")
    for node in launch.nodes[2:]:
        launch.find(node)
    launch.start()
    assert launch.ledger == [lost(15)]


def test_nodes_that_are_found_when_the_next_group_cannot_start_are_in_the_same_note():
    launch = Launch(16, workers=16)
    launch.fail("n1")
    launch.look()
    launch.fail(*launch.nodes[2:9])
    launch.look()
    launch.controller.unplaced(1, 8)
    launch.find(*launch.nodes[9:])
    launch.start()
    assert [event for event in launch.ledger if isinstance(event, NodesLost)] == [lost(15)]


def test_nodes_that_are_found_while_the_next_group_trains_are_in_one_further_note():
    launch = Launch(16, workers=8)
    launch.fail("n1")
    launch.start()
    for node in launch.nodes[10:]:
        launch.find(node, after_s=3.0)
    assert launch.ledger == [lost(1)]
    for _ in range(20):
        launch.look()
    assert launch.ledger == [lost(1), lost(7, told=1)]


def test_a_cluster_of_which_all_nodes_die_tells_the_driver_how_many():
    launch = Launch(4, workers=4)
    launch.fail("n0")
    launch.find("n1")
    launch.find("n2", "n3")
    assert [event for event in launch.terminal if isinstance(event, NodesLost)] == [lost(2), lost(4)]
    assert launch.terminal[-1] == WaitsForRoom(room=0, least=1)
    launch.nodes += ["n4"]
    launch.start()
    assert launch.ledger == [lost(4)]


def test_lost_nodes_without_workers_count():
    launch = Launch(16, workers=1)
    launch.fail("n0")
    launch.find(*launch.nodes[1:15])
    launch.start()
    assert launch.ledger == [lost(15)]


def test_a_dead_worker_whose_node_is_found_dead_later_has_a_note():
    launch = Launch(4, workers=4)
    launch.fail()
    launch.find("n3")
    launch.start()
    assert WorkersFailed(reason=DIED) in launch.ledger
    assert launch.ledger[-1] == lost(1)


def test_a_second_loss_counts_only_its_own_nodes():
    launch = Launch(8, workers=8)
    launch.fail("n1")
    launch.find("n2")
    launch.start()
    launch.fail("n3")
    launch.find("n4", "n5")
    launch.start()
    assert launch.ledger == [lost(2), lost(3)]


@pytest.mark.parametrize("after_s", [61.0, 3600.0])
def test_a_node_that_goes_long_after_is_no_part_of_the_loss(after_s):
    launch = Launch(8, workers=4)
    launch.fail("n1")
    launch.start()
    launch.find("n7", after_s=after_s)
    launch.look(after_s=10.0)
    assert launch.ledger == [lost(1)]


def test_a_node_that_goes_after_its_notice_is_no_part_of_the_loss():
    launch = Launch(8, workers=4)
    launch.fail("n1")
    launch.start()
    launch.look(draining=["n7"])
    launch.find("n7")
    launch.look(after_s=10.0)
    assert launch.ledger == [lost(1)]


def test_a_note_of_an_earlier_loss_that_nobody_has_written_yet_keeps_its_number():
    """The second group dies before it has a step, with a note of the same words."""
    launch = Launch(8, workers=8)
    launch.fail("n1")
    launch.look()
    launch.controller.started(tuple(node for node in launch.nodes if node != "n1"))
    launch.fail("n2")
    launch.find("n3")
    launch.start()
    assert launch.ledger == [lost(1), lost(2)]


def test_a_first_group_that_cannot_start_has_a_whole_note():
    """No group has failed before."""
    launch = Launch(4, workers=4, starts=False)
    assert launch.look().kind == "resize"
    launch.fail("n1")
    launch.start()
    assert launch.ledger == [lost(1)]


def test_a_planned_resize_whose_group_cannot_start_is_no_part_of_an_earlier_loss():
    """The group of before had stopped as planned, an hour after its own start."""
    launch = Launch(4, workers=4)
    launch.fail("n1")
    launch.start()
    launch.look(after_s=3600.0)
    launch.look(draining=["n2"])
    launch.look(after_s=5.0, draining=["n2"])
    assert launch.look(draining=["n2"], parked=True).kind == "resize"
    launch.fail("n3")
    launch.start()
    assert [event for event in launch.ledger if isinstance(event, NodesLost)] == [lost(1)] * 2
