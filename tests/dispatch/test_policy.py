"""What the policy reads from reports and publishes, and its requests, without a cluster."""

from types import SimpleNamespace

import pytest

from planner.dispatch.mailbox import state_key
from planner.elastic.node_requests import NodeRequests

pytestmark = pytest.mark.usefixtures("ray_environment")


@pytest.fixture
def autoscalers():
    """The module; it imports Ray."""
    from planner.dispatch.ray_internal import autoscaler

    return autoscaler


@pytest.fixture
def published(monkeypatch):
    """What stands in the cluster's key-value store."""
    from planner.dispatch.ray_internal import policy as policies

    found = {}
    monkeypatch.setattr(policies, "kv_put", found.__setitem__)
    return found


@pytest.fixture
def policy():
    """Of a launch whose group of two was just started."""
    from planner.dispatch.ray_internal.policy import Policy

    policy = object.__new__(Policy)
    policy._launch_id, policy._state, policy._loading, policy._parked = "l", "", "", set()
    policy._controller = SimpleNamespace(started=lambda _nodes: None, reported=lambda _metrics: None, texts=())
    return policy


def start(policy):
    workers = [SimpleNamespace(metadata=SimpleNamespace(node_id=node)) for node in "ab"]
    policy.group_started(SimpleNamespace(get_workers=lambda: workers))


def hear(policy, metrics, rank=0):
    worker = SimpleNamespace(training_report=SimpleNamespace(metrics=metrics))
    policy._hear(SimpleNamespace(worker_statuses={rank: worker}))


def test_a_group_that_steps_is_no_longer_loading(policy, published):
    """Each group anew."""
    for _ in range(2):
        start(policy)
        hear(policy, {"step": 0}, rank=1)
        assert published[state_key("l")] == "2 workers started, loading"
        hear(policy, {"step": 0})
        assert published[state_key("l")] == ""


def test_what_was_said_since_the_start_stays(policy, published):
    """A group that is to stop before its first step was heard of."""
    start(policy)
    policy._tell_driver("all workers stop at the same step and commit")
    hear(policy, {"step": 0})
    assert published[state_key("l")] == "all workers stop at the same step and commit"


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
    monkeypatch.setattr(autoscalers.ray, "get", lambda *_, **__: None)
    coordinator = SimpleNamespace(request_resources=SimpleNamespace(remote=lambda **_: None))
    scaling = SimpleNamespace(_resources_per_worker_not_none={"CPU": 1})
    autoscaler = autoscalers.Autoscaler()
    for num_workers in (16, 8):
        gcs.autoscaler_looks()
        gcs.answers = answers
        autoscaler.ask(coordinator, "us", scaling, num_workers)
        assert autoscaler.asked == num_workers
        assert not autoscaler.is_due
        assert autoscaler.verdict() == ""
        gcs.answers = True
        assert autoscaler.verdict() == ""
        gcs.autoscaler_looks()
        assert autoscaler.verdict() == "rejected"


def test_a_request_that_failed_is_made_again(monkeypatch, autoscalers):
    def fail(*_, **__):
        raise ConnectionError

    monkeypatch.setattr(autoscalers, "build_train_resource_request", lambda *_: ([], []))
    monkeypatch.setattr(autoscalers.ray, "get", fail)
    coordinator = SimpleNamespace(request_resources=SimpleNamespace(remote=lambda **_: None))
    autoscaler = autoscalers.Autoscaler()
    autoscaler.ask(coordinator, "us", SimpleNamespace(_resources_per_worker_not_none={"CPU": 1}), 16)
    assert autoscaler.asked == 0
    assert autoscaler.is_due


def test_a_node_has_room_for_parts_of_a_cpu(policy, monkeypatch):
    """Ten workers of 0.1 on one CPU, as `planner plan --cluster` says. Ray 2.60's own count is 9: it divides floats."""
    from planner.dispatch.ray_internal import policy as policies

    ray = SimpleNamespace(
        get=lambda answer, **_: answer,
        nodes=lambda: [{"NodeID": "a", "Alive": True}],
        _private=SimpleNamespace(state=SimpleNamespace(state=SimpleNamespace(get_draining_nodes=dict))),
    )
    monkeypatch.setattr(policies, "ray", ray)
    monkeypatch.setattr(policies, "kv_get", lambda _key: "")
    reserved = SimpleNamespace(remote=lambda _requester, **_: {"a": {"CPU": 1.0}})
    coordinator = SimpleNamespace(get_reserved_resources=reserved)
    monkeypatch.setattr(policies.Policy, "_autoscaling_coordinator", coordinator)
    policy._requester_id, policy._suspects = "r", set()
    policy._controller.bad_nodes = frozenset()
    policy.scaling_config = SimpleNamespace(_resources_per_worker_not_none={"CPU": 0.1}, max_workers=64)
    assert policy._look()
    assert policy._room == {"a": 10}


class Actor:
    """Answers when the test says so, or dies."""

    def __init__(self):
        self.asked = []
        self.execute = SimpleNamespace(remote=lambda question: self.asked.append(question) or len(self.asked) - 1)


class TestHeartbeats:
    """The work that a group has done, as its workers say."""

    @pytest.fixture
    def ray_answers(self, monkeypatch):
        """(actor's number of the question) -> what it says; an error is raised."""
        from planner.dispatch.ray_internal import worker_progress

        answers = {}

        def get(reference):
            if isinstance(answers[reference], Exception):
                raise answers[reference]
            return answers[reference]

        monkeypatch.setattr(worker_progress.ray, "wait", lambda found, **_: ([r for r in found if r in answers], []))
        monkeypatch.setattr(worker_progress.ray, "get", get)
        return answers

    def test_answers_count_when_they_are_there_and_the_deaf_are_asked_once(self, ray_answers):
        from planner.dispatch.ray_internal.worker_progress import WorkerProgress

        now = [0.0]
        heartbeats, worker = WorkerProgress(lambda: now[0]), SimpleNamespace(actor=Actor())
        for now[0] in (0.0, 1.0, 10.0):
            assert heartbeats.total([worker]) == 0
        assert len(worker.actor.asked) == 1
        ray_answers[0] = 7
        assert heartbeats.total([worker]) == 7
        now[0] = 20.0
        assert heartbeats.total([worker]) == 7
        ray_answers[1] = 9
        assert heartbeats.total([worker]) == 9

    def test_a_worker_that_died_counts_for_nothing(self, ray_answers):
        from ray.exceptions import RayError

        from planner.dispatch.ray_internal.worker_progress import WorkerProgress

        heartbeats, worker = WorkerProgress(lambda: 0.0), SimpleNamespace(actor=Actor())
        heartbeats.total([worker])
        ray_answers[0] = RayError()
        assert heartbeats.total([worker]) == 0

    def test_an_answer_that_is_lost_is_no_work(self, ray_answers):
        """Over a network that flaps, a group that hangs would seem to be at work for ever."""
        from ray.exceptions import RayError

        from planner.dispatch.ray_internal.worker_progress import WorkerProgress

        now = [0.0]
        heartbeats, worker = WorkerProgress(lambda: now[0]), SimpleNamespace(actor=Actor())
        ray_answers.update({0: 7, 1: RayError(), 2: 7, 3: RayError()})
        totals = []
        for now[0] in range(0, 25, 5):
            totals.append(heartbeats.total([worker]))
        assert totals == [0, 7, 7, 7, 7]


class Listening:
    """What `Policy._hear_autoscaler` needs: a cluster that holds `present` workers, and whose bound is `bound`."""

    def __init__(self, bound, present, most):
        self.counts = range(1, most + 1)
        self._node_requests = NodeRequests(lambda: 0.0)
        self._room = {f"n{i}": 1 for i in range(present)}
        self._controller = SimpleNamespace(note=lambda _text: None)
        self._autoscaler = SimpleNamespace(asked=0, reasons=(), verdict=self._verdict)
        self._bound = bound

    def _verdict(self):
        return "accepted" if self._autoscaler.asked <= self._bound else "rejected"

    def _maybe_send_resource_request(self):
        self._autoscaler.asked = self._node_requests.count(self.counts)


@pytest.mark.parametrize(("bound", "present", "most"), [(6, 5, 16), (30, 17, 64), (8, 4, 16), (8, 8, 8), (5, 9, 16)])
def test_what_is_there_already_counts_as_taken(bound, present, most):
    """The autoscaler is heard only while something is missing: the search must not end below what is there."""
    from planner.dispatch.ray_internal.policy import Policy

    policy = Listening(bound, present, most)
    Policy._hear_autoscaler(policy)  # before the first request
    for _ in range(30):
        policy._maybe_send_resource_request()
        Policy._hear_autoscaler(policy)
    assert policy._node_requests.count(policy.counts) == max(bound, present)
