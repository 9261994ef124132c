"""Which nodes get a keeper, what workers are told of them, and when a stop may trust in them. Without Ray."""

from dataclasses import replace
from types import MappingProxyType, SimpleNamespace

import pytest

from planner.dispatch import keepers
from planner.dispatch.keeper_actor import IDLE_END_S, KeeperActor, bound_bytes
from planner.dispatch.keeper_census import Census, Wanted, census_of, wanted
from planner.dispatch.keepers import NodePlace, Published, ending_keepers, keepers_of, places
from planner.dispatch.launch import new_launch
from planner.dispatch.worker import WorkerConfig
from planner.elastic.controller import ElasticController
from planner.elastic.states import Ending, Idle, Rules, Stopping, Warming
from planner.elastic.view import View
from planner.job import Job
from planner.keeper.addresses import Address, Keepers
from planner.keeper.client import KeeperClient
from planner.plan import BatchSizes, WorkerRange
from planner.plan.growth import ResizeCost

PLACES = dict.fromkeys("abc", NodePlace(host="127.0.0.1", num_nodes=3))


def address(node, port=1):
    return Address(node=node, host="127.0.0.1", port=port)


class Actors:
    """Keepers that answer when the test says so."""

    def __init__(self, *there, is_closed=lambda: False):
        self.is_closed, self.published = is_closed, []
        self.publish = self.published.append
        self.there, self.port = dict.fromkeys(there, 1), 1
        self.silent, self.broken, self.unreached = set(), set(), set()
        self.opened, self.ended = [], []

    def find(self):
        return list(self.there)

    def open(self, node, place):
        assert place == PLACES[node]
        self.opened.append(node)
        self.there.setdefault(node, self.port)
        return lambda: address(node, self.there[node])

    def ping(self, node):  # noqa: ARG002
        return lambda: None

    def answers(self, asked, wait_s):
        assert wait_s <= 5
        found = {node: answer for node, answer in asked.items() if node not in self.silent}
        errors = dict.fromkeys(self.unreached, OSError("no route")) | dict.fromkeys(self.broken, ValueError("dead"))
        return {node: errors[node] if node in errors else answer() for node, answer in found.items()}

    def is_gone(self, error):
        return isinstance(error, ValueError)

    def end(self, node):
        self.ended.append(node)
        self.there.pop(node, None)


@pytest.fixture
def made():
    """(census, its actors, what it published, a clock that the test sets)."""

    def make(*there, is_closed=lambda: False):
        actors, clock = Actors(*there, is_closed=is_closed), SimpleNamespace(now_s=100.0)
        return Census(actors, lambda: clock.now_s), actors, actors.published, clock

    return make


def turn(census, nodes, ends_others=False, leaving="", there=PLACES):
    order = Wanted(nodes=frozenset(nodes), leaving=frozenset(leaving), ends_others=ends_others)
    census.order(order, there)
    census.turn()


def test_each_wanted_node_gets_a_keeper_and_workers_are_told(made):
    """First that it starts, then where it is."""
    census, actors, published, _ = made()
    turn(census, "ab")
    assert actors.opened == ["a", "b"]
    assert published == [Published(starting=("a", "b")), Published(addresses=(address("a"), address("b")))]
    turn(census, "ab")
    assert actors.opened == ["a", "b"]
    assert len(published) == 2


def test_keepers_of_an_earlier_controller_are_taken_over(made):
    """Also those of nodes that get no new one. Nothing less is ever published."""
    census, actors, published, _ = made("a", "c")
    turn(census, "a", leaving="c")
    assert actors.ended == []
    assert published[-1].addresses == (address("a"), address("c"))
    assert all({"a", "c"} == {*each.starting, *(one.node for one in each.addresses)} for each in published)


def test_before_the_nodes_are_known_nothing_happens(made):
    census, actors, published, _ = made("a")
    census.turn()
    assert published == actors.opened == []


class TestCanHold:
    def test_if_each_node_of_the_group_has_one_that_its_workers_know(self, made):
        census, _, _, clock = made()
        turn(census, "ab")
        assert not census.can_hold("ab")  # no group has begun
        clock.now_s += 1
        census.mark_start()
        assert census.can_hold("ab")
        assert not census.can_hold("abc")
        assert not census.can_hold("")

    def test_not_while_it_starts(self, made):
        census, actors, _, _ = made()
        actors.silent = {"b"}
        turn(census, "ab")
        census.mark_start()
        assert not census.can_hold("ab")
        actors.silent = set()
        census.turn()
        assert census.can_hold("ab")

    def test_not_if_it_was_made_after_the_group_began(self, made):
        """The workers ask at the begin, and within half a minute once more."""
        census, _, _, clock = made()
        turn(census, "a")
        census.mark_start()
        for seconds, knows in ((1, False), (30, False), (1, True)):
            clock.now_s += seconds
            turn(census, "ab")
            assert census.can_hold("ab") == knows
        census.mark_start()
        assert census.can_hold("ab")

    def test_not_if_it_does_not_answer(self, made):
        census, actors, _, clock = made()
        turn(census, "ab")
        census.mark_start()
        actors.silent = {"b"}
        clock.now_s += 9
        census.turn()
        assert census.can_hold("ab")
        clock.now_s += 2
        census.turn()
        assert not census.can_hold("ab")
        assert census.can_hold("a")

    def test_not_if_another_one_took_its_place(self, made):
        """It is empty, and the workers have the address of the first."""
        census, actors, published, clock = made()
        turn(census, "ab")
        census.mark_start()
        actors.broken = {"b"}
        clock.now_s += 1
        census.turn()
        assert not census.can_hold("ab")
        assert published[-1].addresses == (address("a"),)
        actors.broken, actors.there, actors.port = set(), {"a": 1}, 2
        clock.now_s += 20
        turn(census, "ab")
        assert published[-1].addresses == (address("a"), address("b", 2))
        assert not census.can_hold("ab")


def test_a_keeper_that_failed_is_started_again_later(made):
    census, actors, _, clock = made()
    actors.broken = {"a"}
    for now_s, tries in [(100.0, 1), (105.0, 1), (111.0, 2)]:
        clock.now_s = now_s
        turn(census, "a")
        assert len(actors.opened) == tries


def test_a_keeper_that_ray_cannot_reach_stays_known(made):
    """Workers may reach it. Without an answer for long, no step is trusted to it. Then it answers again."""
    census, actors, published, clock = made()
    turn(census, "ab")
    known = published[-1]
    census.mark_start()
    clock.now_s += 1
    actors.unreached = {"a"}
    census.turn()
    assert census.can_hold("ab")
    clock.now_s += 60
    census.turn()
    assert not census.can_hold("ab")
    assert published[-1] == known
    actors.unreached = set()
    census.turn()
    assert census.can_hold("ab")
    assert actors.opened == ["a", "b"]


def test_a_keeper_without_an_address_that_cannot_be_reached_is_started_again(made):
    census, actors, published, _ = made()
    actors.unreached = {"a"}
    turn(census, "a")
    assert published[-1] == Published()


def test_a_keeper_that_never_starts_is_given_up(made):
    """Workers of that node must not wait for it at each start."""
    census, actors, published, clock = made()
    actors.silent = {"a"}
    turn(census, "a")
    clock.now_s += 61
    census.turn()
    assert actors.ended == ["a"]
    assert published[-1] == Published()


def test_a_dead_node_takes_its_keeper_along(made):
    census, actors, published, _ = made()
    turn(census, "ab")
    turn(census, "ab", there={"a": PLACES["a"]})
    assert published[-1].addresses == (address("a"),)
    assert actors.ended == []


def test_keepers_of_other_nodes_end_only_when_the_group_has_what_it_needs(made):
    census, actors, published, _ = made()
    turn(census, "abc")
    turn(census, "ab", leaving="c")
    assert actors.ended == []
    turn(census, "ab", leaving="c", ends_others=True)
    assert actors.ended == ["c"]
    assert published[-1].addresses == (address("a"), address("b"))


def test_a_node_with_notice_gets_no_keeper(made):
    census, actors, _, _ = made()
    turn(census, "ab", leaving="b")
    assert actors.opened == ["a"]


def test_after_the_end_of_the_launch_no_keeper_starts(made):
    """The driver has ended them all. The controller may live a little longer."""
    census, actors, _, _ = made(is_closed=lambda: True)
    turn(census, "ab")
    assert actors.opened == []


class TestWanted:
    """By the controller's state."""

    @pytest.fixture
    def controller(self):
        rules = Rules(
            sizes=BatchSizes(global_batch=48, max_micro=8), workers=WorkerRange(least=1, most=8), has_eval=False
        )
        return ElasticController(rules, cost=ResizeCost(grow_s=1.0, shrink_s=1.0), clock=lambda: 0.0)

    ROOM = MappingProxyType({"a": 1, "b": 1, "c": 1, "full": 0})

    def test_every_node_with_room_before_a_group_starts(self, controller):
        view = View(room=self.ROOM, draining={"d": 9.0})
        assert isinstance(controller.state, Idle)
        assert wanted(controller.state, view) == Wanted(nodes=frozenset("abc"), leaving=frozenset("d"))

    def test_the_group_alone_while_it_trains(self, controller):
        """A node with a keeper is busy: an autoscaler would not give it back. The others end after the first step."""
        controller.started(("a", "b"))
        view = View(room=self.ROOM, draining={}, nodes=("a", "b"))
        assert wanted(controller.state, view) == Wanted(nodes=frozenset("ab"))
        metrics = {
            "step": 0, "total_steps": 9, "world_size": 2, "seconds": 1.0, "held_step": 0, "copied_step": 0,
            "step_cost": 8, "num_again": 0, "durable_step": 0, "is_last": False, "commit_s": 0.0, "eval_s": 0.0,
        }  # fmt: skip
        controller.reported(metrics)
        assert wanted(controller.state, view) == Wanted(nodes=frozenset("ab"), ends_others=True)

    def test_every_node_with_room_when_the_group_will_change(self, controller):
        controller.started(("a", "b"))
        known, group = controller.state.known, controller.state.group
        view = View(room=self.ROOM, draining={"b": 9.0}, nodes=("a", "b"))
        for state in (
            Warming(known=known, group=group, since_s=0.0, world_size=3),
            Stopping(known=known, group=group, since_s=0.0, most=3),
        ):
            assert wanted(state, view) == Wanted(nodes=frozenset("abc"), leaving=frozenset("b"))

    def test_none_at_the_end(self, controller):
        assert wanted(Ending(known=controller.state.known), View(room=self.ROOM, draining={})) == Wanted()


def row(node, host, cpus=1, is_alive=True):
    return {
        "NodeID": node,
        "Alive": is_alive,
        "NodeManagerHostname": host,
        "NodeManagerAddress": f"ip-{host}",
        "Resources": {"CPU": cpus} if cpus else {},
    }


def test_nodes_of_one_host_share_its_memory():
    """A head without CPUs has no keeper, and a dead node needs no memory."""
    rows = [row("h", "one", cpus=0), row("a", "one"), row("b", "one"), row("c", "two"), row("d", "two", is_alive=False)]
    assert places(rows) == {
        "a": NodePlace(host="ip-one", num_nodes=2),
        "b": NodePlace(host="ip-one", num_nodes=2),
        "c": NodePlace(host="ip-two", num_nodes=1),
    }
    assert [bound_bytes(1000, num_nodes) for num_nodes in (1, 2)] == [800, 400]


def test_what_is_published_is_read_again():
    for found in (Published(), Published(addresses=(address("a"), address("b", 9)), starting=("c",))):
        assert Published.of_text(found.as_text()) == found
    assert Published.of_text("") == Published.of_text("closed") == Published()


@pytest.fixture
def launch(tmp_path):
    job = Job.model_validate(
        {
            "name": "kept",
            "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16},
            "data": {"kind": "text", "path": str(tmp_path / "text")},
            "batch": {"global": 2, "max_micro": 1},
            "train": {"steps": 4, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "workers": {"gpus": 0},
        }
    )
    return new_launch(job, str(tmp_path / "run"), frozenset())


def without_memory(launch):
    checkpoint = launch.job.checkpoint.model_copy(update={"memory": "off"})
    job = launch.job.model_copy(update={"checkpoint": checkpoint})
    return new_launch(job, launch.url, frozenset())


def test_each_launch_has_its_own_secret_that_no_text_shows(launch):
    """Ray may show the worker's configuration on its dashboard."""
    other = new_launch(launch.job, launch.url, frozenset())
    assert len({launch.keeper_secret, other.keeper_secret}) == 2
    assert launch.keeper_secret not in repr(WorkerConfig(launch=launch, on_cpu=True))
    assert launch.keeper_secret not in Published(addresses=(address("a"),)).as_text()


def test_memory_off_means_no_keepers(launch, monkeypatch):
    monkeypatch.setattr(keepers, "kv_get", lambda _key: pytest.fail("it looked for keepers"))
    monkeypatch.setattr(keepers, "kv_put", lambda *_: pytest.fail("it ended keepers"))
    off = without_memory(launch)
    assert keepers_of(off) is None
    assert census_of(off) is None
    with ending_keepers(off):
        pass


class TestWhatAWorkerKnows:
    @pytest.fixture
    def published(self, monkeypatch, ray_environment):  # noqa: ARG002
        """What the store has at each look. This worker is on node `a`."""
        import ray

        found = []
        labels = {"ray.io/market-type": "on-demand"}
        context = SimpleNamespace(get_node_id=lambda: "a", get_node_labels=lambda: labels)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(keepers, "kv_get", lambda _key: found.pop(0) if len(found) > 1 else found[0])
        monkeypatch.setattr(keepers.time, "sleep", lambda _s: None)
        return found

    @pytest.mark.parametrize(("min_on", "is_on_floor"), [("any", False), ("on-demand", True)])
    def test_whether_its_node_belongs_to_the_floor(self, launch, published, min_on, is_on_floor):
        """Its node is on demand. Only a job with a floor looks at that."""
        published.append(Published().as_text())
        workers = launch.job.workers.model_copy(update={"min_on": min_on})
        job = launch.job.model_copy(update={"workers": workers})
        assert keepers_of(replace(launch, job=job)).is_on_floor == is_on_floor

    def test_all_keepers_its_own_node_and_the_secret(self, launch, published):
        published.append(Published(addresses=(address("a"), address("b"))).as_text())
        known = Keepers(node="a", addresses=(address("a"), address("b")), secret=launch.keeper_secret)
        assert keepers_of(launch) == known
        assert known.own == address("a")

    def test_it_waits_for_its_own_keeper_but_for_no_other(self, launch, published):
        published += [
            Published(starting=("a", "b")).as_text(),
            Published(addresses=(address("a"),), starting=("b",)).as_text(),
            Published(addresses=(address("a"), address("b"))).as_text(),
        ]
        assert keepers_of(launch).addresses == (address("a"),)

    def test_it_does_not_wait_for_ever(self, launch, published, monkeypatch):
        now = iter(range(100))
        monkeypatch.setattr(keepers.time, "monotonic", lambda: next(now))
        published.append(Published(addresses=(address("b"),), starting=("a",)).as_text())
        assert keepers_of(launch).own is None

    def test_a_store_that_does_not_answer_at_once_is_asked_again(self, launch, published, monkeypatch):
        """One worker that knows no keepers would cost all what is in memory."""
        published.append(Published(addresses=(address("a"),)).as_text())
        errors, get = [OSError("busy"), OSError("busy")], keepers.kv_get

        def kv_get(key):
            if errors:
                raise errors.pop()
            return get(key)

        monkeypatch.setattr(keepers, "kv_get", kv_get)
        assert keepers_of(launch).addresses == (address("a"),)

    @pytest.mark.parametrize("text", ["", "closed", Published().as_text()])
    def test_without_any_it_knows_its_node(self, launch, published, text):
        """It asks again later."""
        published.append(text)
        assert keepers_of(launch) == Keepers(node="a", addresses=(), secret=launch.keeper_secret)

    def test_what_is_no_json_is_nothing(self, launch, published):
        published.append("no JSON")
        assert keepers_of(launch) is None


class TestTheActor:
    """As a plain object."""

    def test_it_opens_once_and_serves(self):
        actor = KeeperActor()
        arguments = {"node": "a", "host": "127.0.0.1", "num_nodes": 1000, "secret": "s"}
        found = actor.open(**arguments)
        try:
            assert actor.open(**arguments) == found
            assert found.node == "a"
            with KeeperClient(found, "s") as client:
                assert client.copies() == []
        finally:
            actor._keeper.close()

    def test_it_is_idle_only_if_neither_worker_nor_controller_came(self, monkeypatch):
        """A controller that lives pings it. A worker may use it while no controller does."""
        from planner.dispatch import keeper_actor

        now = [1000.0]
        monkeypatch.setattr(keeper_actor.time, "monotonic", lambda: now[0])
        actor = KeeperActor()
        now[0] += IDLE_END_S + 1
        assert actor.is_idle()
        actor.ping()
        assert not actor.is_idle()
        now[0] += IDLE_END_S + 1
        actor._keeper = SimpleNamespace(idle_s=5.0)
        assert not actor.is_idle()
        actor._keeper = SimpleNamespace(idle_s=IDLE_END_S + 1)
        assert actor.is_idle()

    def test_an_idle_one_closes_its_keeper_and_ends(self, monkeypatch):
        from planner.dispatch import keeper_actor

        done, actor = [], KeeperActor()
        actor._keeper = SimpleNamespace(idle_s=IDLE_END_S + 1, close=lambda: done.append("closed"))
        actor._called_s -= IDLE_END_S + 1
        monkeypatch.setattr(keeper_actor.time, "sleep", lambda _s: pytest.fail("it waits"))
        actor._end_if_idle(done.append)
        assert done == ["closed", 0]


def test_a_keeper_that_a_controller_makes_during_the_end_is_ended_too(monkeypatch):
    """And none is published any more."""
    found, ended, put = [["a", "b"], ["c"], []], [], []

    class Late:
        def __init__(self, _launch_id, secret):
            assert secret == ""

        def find(self):
            return found.pop(0)

        def end(self, node):
            ended.append(node)

    monkeypatch.setattr(keepers, "KeeperActors", Late)
    monkeypatch.setattr(keepers, "kv_put", lambda _key, text: put.append(text))
    keepers._end_all("launch")
    assert ended == ["a", "b", "c"]
    assert Published.of_text(put[-1]) == Published()
    assert len(put) == 3
