"""What the policy does on a decision, without a cluster."""

from types import SimpleNamespace

import pytest
from made_up_groups import elastic_controller, silent_controller, workers_on
from message import Message

from planner.dispatch.keeper_census import Wanted
from planner.dispatch.mailbox import end_reply_key, request_stop, state_key
from planner.elastic.view import Act, View
from planner.events.failures import Whereabouts
from planner.events.stopping import EndsWithLoss

pytestmark = pytest.mark.usefixtures("ray_environment")


@pytest.fixture
def published(monkeypatch):
    """What stands in the cluster's key-value store."""
    from planner.dispatch.ray_internal import reporter

    found = {}
    monkeypatch.setattr(reporter, "kv_put", found.__setitem__)
    return found


@pytest.fixture
def done():
    """What the group was told to do."""
    return []


@pytest.fixture
def make(published, done):  # noqa: ARG001
    """`make(controller)` -> an actuator beside a group that runs, on a cluster where node b has notice."""
    from planner.dispatch.ray_internal.actuator import Actuator
    from planner.dispatch.ray_internal.reporter import Reporter

    def make(controller, **others):
        group = SimpleNamespace(
            warm=lambda count, leaving: done.append(("warm", count, leaving)),
            abandon_newcomers=lambda: done.append(("abandon",)),
            plan_change=lambda *change: done.append(("change", *change)),
        )
        observer = SimpleNamespace(group=group, leaving={"b"}, census=None, places={}, **others)
        return Actuator(controller, observer, Reporter(controller, "l", ""), None)

    return make


@pytest.mark.parametrize(("in_memory", "cut"), [(True, False), (False, False), (True, True), (False, True)])
def test_each_worker_is_told_what_kind_of_stop_it_is(make, published, in_memory, cut):
    """Whether its last step may stay in memory, and whether it cuts the step in flight."""
    asked = []
    actuator = make(silent_controller(stop=Message(text="soon")))
    actuator.do(Act(kind="stop", in_memory=in_memory, cut=cut), workers_on("ab", asked))
    assert asked == [(request_stop, (in_memory, cut))] * 2
    assert published[state_key("l")] == "soon"


def test_what_is_lost_at_the_end_is_told_to_the_driver(make, published):
    """Workers that have parked write no ledger."""
    make(silent_controller()).do(
        Act(kind="end", events=(EndsWithLoss(step=7, is_sure=True, durable_step=0),)), workers_on("a")
    )
    assert published[state_key("l")] == "the run ends: step 7 is only in memory, and is lost"
    assert published[end_reply_key("l")] == "yes"


def test_newcomers_are_started_and_called_off(make, done):
    actuator = make(silent_controller())
    for act in (Act(kind="warm", world_size=2), Act(kind="abandon_newcomers"), Act()):
        actuator.do(act, workers_on("a"))
    assert done == [("warm", 2, {"b"}), ("abandon",)]


@pytest.mark.parametrize(("planned", "kept"), [(True, 3), (False, 0)])
def test_only_a_planned_resize_keeps_processes(make, done, published, monkeypatch, planned, kept):
    """Before any other, the ledger gets where the workers were."""
    from planner.dispatch.ray_internal import actuator as actuators

    noted = []
    monkeypatch.setattr(actuators, "whereabouts", lambda _workers: Whereabouts(places=()))
    make(silent_controller(note=noted.append)).do(Act(kind="resize", world_size=3, planned=planned), workers_on("ab"))
    assert done == [("change", kept, {"b"})]
    assert noted == ([] if planned else [Whereabouts(places=())])
    assert published[state_key("l")] == "continuing with 3 workers"


def test_the_census_gets_what_the_cluster_shows(make):
    orders = []
    actuator = make(elastic_controller())
    actuator._observer.census = SimpleNamespace(order=lambda *order: orders.append(order))
    actuator._observer.places = {"a": "here"}
    actuator.order_keepers(View(room={"a": 1}, draining={"b": 3.0}))
    assert orders == [(Wanted(nodes=frozenset("a"), leaving=frozenset("b")), {"a": "here"})]
