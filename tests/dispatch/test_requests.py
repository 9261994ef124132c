"""Requests for nodes, their outcome, and the places of a run, without a cluster."""

from types import SimpleNamespace

import pytest
from made_up_groups import silent_controller

pytestmark = pytest.mark.usefixtures("ray_environment")


@pytest.fixture
def autoscalers():
    """The module; it imports Ray."""
    from planner.dispatch.ray_internal import autoscaler

    return autoscaler


def connected(autoscalers, cpus=1.0, reserved=None):
    """Workers need so many CPUs, and the coordinator has reserved these places."""
    autoscaler = autoscalers.Autoscaler(SimpleNamespace(_resources_per_worker_not_none={"CPU": cpus}), "r")
    coordinator = SimpleNamespace(
        request_resources=SimpleNamespace(remote=lambda **_: None),
        get_reserved_resources=SimpleNamespace(remote=lambda _requester, **_: reserved),
    )
    autoscaler.connect(coordinator, "us")
    return autoscaler


class Gcs:
    """Counts who looks at its state, as Ray's does; the autoscaler looks when the test says so."""

    def __init__(self):
        self.looks = 5
        self.seen = 4
        self.answers = True

    def status(self):
        if not self.answers:
            raise ConnectionError
        self.looks += 1
        state = SimpleNamespace(
            last_seen_cluster_resource_state_version=self.seen,
            infeasible_cluster_resource_constraints=["too many"],
            failed_instance_requests=[],
        )
        resources = SimpleNamespace(cluster_resource_state_version=self.looks)
        return SimpleNamespace(autoscaling_state=state, cluster_resource_state=resources)

    def autoscaler_looks(self):
        self.looks += 1
        self.seen = self.looks


@pytest.mark.parametrize("answers", [True, False])
def test_a_request_that_was_made_is_known_where_the_state_cannot_be_read(monkeypatch, autoscalers, answers):
    """Only a verdict is missing then, and one of before the request is not taken for it."""
    gcs = Gcs()
    monkeypatch.setattr(autoscalers, "_status", gcs.status)
    monkeypatch.setattr(autoscalers, "_LOOK_S", 0.0)
    monkeypatch.setattr(autoscalers, "build_train_resource_request", lambda *_: ([], []))
    requests = []
    monkeypatch.setattr(autoscalers.ray, "get", lambda *_, **__: requests.append(autoscaler.asked))
    autoscaler = connected(autoscalers)
    for num_workers in (16, 8):
        gcs.autoscaler_looks()
        gcs.answers = answers
        for _ in range(2):
            autoscaler.ask(num_workers)
            assert autoscaler.asked == num_workers
        assert autoscaler.verdict() == ""
        gcs.answers = True
        assert autoscaler.verdict() == ""
        gcs.autoscaler_looks()
        assert autoscaler.verdict() == "rejected"
    assert requests == [0, 16]


def test_the_floor_is_requested_on_on_demand_nodes_and_the_rest_anywhere(monkeypatch, autoscalers):
    """It is requested again as soon as one of the two numbers changes. A request for fewer has the floor alone."""
    requests = []
    monkeypatch.setattr(
        autoscalers, "build_train_resource_request", lambda _scaling, count: ([{"CPU": 1}] * count, None)
    )
    monkeypatch.setattr(autoscalers.ray, "get", lambda *_, **__: None)
    autoscaler = connected(autoscalers)
    autoscaler._coordinator.request_resources.remote = lambda *, label_selectors, **_: requests.append(label_selectors)
    for num_workers, on_demand in ((3, 2), (3, 2), (3, 0), (1, 2)):
        autoscaler.ask(num_workers, on_demand)
    labelled = {"ray.io/market-type": "on-demand"}
    assert requests == [[labelled, labelled, {}], None, [labelled]]


def test_what_was_accepted_is_not_heard_of_until_the_floor_is_there():
    """Spot nodes have room for all workers, and the autoscaler rejects the request for an on-demand node."""
    from planner.dispatch.ray_internal.actuator import Actuator

    noted = []
    controller = silent_controller(worth_asking=range(1, 5), note=noted.append, floor=1)
    observer = SimpleNamespace(room={"spot": 4}, num_bad=0, num_on_demand=0)
    autoscaler = SimpleNamespace(asked=4, shortage="none comes", verdict=lambda: "rejected", ask=lambda *_: None)
    actuator = Actuator(controller, observer, None, autoscaler)
    actuator.hear_autoscaler()
    assert autoscaler.shortage == "none comes"
    observer.num_on_demand = 1
    actuator.hear_autoscaler()
    assert autoscaler.shortage is None


def test_a_request_that_failed_is_made_again(monkeypatch, autoscalers):
    failures = []

    def fail(*_, **__):
        failures.append("no answer")
        raise ConnectionError

    monkeypatch.setattr(autoscalers, "build_train_resource_request", lambda *_: ([], []))
    monkeypatch.setattr(autoscalers.ray, "get", fail)
    autoscaler = connected(autoscalers)
    for _ in range(2):
        autoscaler.ask(16)
        assert autoscaler.asked == 0
    assert len(failures) == 2


def test_a_request_is_repeated_before_it_expires(monkeypatch, autoscalers):
    """After 20 s, and it expires after 180 s."""
    requests, now = [], [0.0]
    monkeypatch.setattr(autoscalers, "build_train_resource_request", lambda *_: ([], []))
    monkeypatch.setattr(autoscalers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(autoscalers.ray, "get", lambda *_, **__: requests.append(now[0]))
    autoscaler = connected(autoscalers)
    for now[0] in (0.0, 20.0, 20.5, 40.0, 41.0):
        autoscaler.ask(16)
    assert requests == [0.0, 20.5, 41.0]


def test_a_node_has_room_for_parts_of_a_cpu(monkeypatch, autoscalers):
    """Ten workers of 0.1 on one CPU, as `planner plan --cluster` says. Ray 2.60's own count is 9: it divides floats."""
    monkeypatch.setattr(autoscalers.ray, "get", lambda answer, **_: answer)
    assert connected(autoscalers, 0.1, {"a": {"CPU": 1.0}}).room() == {"a": 10}


def test_the_next_launch_cancels_the_request_of_a_killed_driver(monkeypatch, autoscalers):
    """Of the same run. An error is only logged, because the request expires."""
    known, cancelled = {}, []

    def coordinator():
        if cancelled:
            raise ConnectionError
        cancel = SimpleNamespace(remote=lambda *, requester_id: cancelled.append(requester_id))
        return SimpleNamespace(cancel_request=cancel)

    monkeypatch.setattr(autoscalers, "kv_put", known.__setitem__)
    monkeypatch.setattr(autoscalers, "kv_get", lambda key: known.get(key, ""))
    monkeypatch.setattr(autoscalers, "get_or_create_autoscaling_coordinator", coordinator)
    autoscaler = connected(autoscalers)
    autoscaler.cancel_earlier()
    assert cancelled == []
    autoscaler.remember()
    for _ in range(2):
        connected(autoscalers).cancel_earlier()
        assert cancelled == ["us"]


class Bounded:
    """An autoscaler that accepts up to `bound` workers."""

    def __init__(self, bound):
        self.asked, self.shortage = 0, None
        self._bound = bound

    def ask(self, num_workers, on_demand):
        assert on_demand == 0
        self.asked = num_workers

    def verdict(self):
        return "accepted" if self.asked <= self._bound else "rejected"


@pytest.mark.parametrize(("bound", "present", "most"), [(6, 5, 16), (30, 17, 64), (8, 4, 16), (8, 8, 8), (5, 9, 16)])
def test_what_is_there_already_counts_as_taken(bound, present, most):
    """The autoscaler is heard only while something is missing: the search must not end below what is there."""
    from planner.dispatch.ray_internal.actuator import Actuator

    noted = []
    controller = silent_controller(worth_asking=range(1, most + 1), note=noted.append)
    observer = SimpleNamespace(room={f"n{i}": 1 for i in range(present)}, num_bad=0, num_on_demand=0)
    actuator = Actuator(controller, observer, None, Bounded(bound))
    actuator.hear_autoscaler()  # before the first request
    for _ in range(30):
        actuator.request_nodes()
        actuator.hear_autoscaler()
    assert actuator.num_requested() == max(bound, present)
    assert bool(noted) == (max(bound, present) < most)
