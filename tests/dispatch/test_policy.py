"""What the policy reads from reports and publishes, and its requests, without a cluster."""

import math
import re
from types import SimpleNamespace

import pytest
from message import Message

from planner.base.user_errors import CodeError, UserCodeFailed
from planner.dispatch import worker
from planner.dispatch.keeper_census import Wanted
from planner.dispatch.mailbox import PARKED, end_reply_key, post_event, request_stop, state_key, status_key, verdict_key
from planner.elastic.controller import ElasticController
from planner.elastic.mistakes import GaveUp
from planner.elastic.node_requests import NodeRequests
from planner.elastic.states import Idle, Rules, Waiting
from planner.elastic.view import Act, View
from planner.errors import TrainingFailed
from planner.events.failures import GivesUp, Hung
from planner.events.outlook import Starts
from planner.events.sizing import Waited
from planner.events.stopping import EndsWithLoss, WaitsForRoom
from planner.plan import FIRST_COLLECTIVES_S, BatchSizes, ResizeCost, WorkerRange
from planner.store.run_status import RunStatus

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
    policy._launch_id, policy._told, policy._loading, policy._parked = "l", (), (), set()
    policy._tells_of_stop, policy._dead = False, frozenset()
    policy._controller = SimpleNamespace(started=lambda _nodes: None, reported=lambda _metrics: None, events=())
    return policy


def start(policy):
    workers = [SimpleNamespace(metadata=SimpleNamespace(node_id=node)) for node in "ab"]
    policy.group_started(SimpleNamespace(get_workers=lambda: workers))


def hear(policy, metrics, rank=0):
    worker = SimpleNamespace(training_report=SimpleNamespace(metrics=metrics))
    policy._hear(SimpleNamespace(worker_statuses={rank: worker}))


def test_a_mistake_in_the_users_code_ends_the_run_and_its_whole_text_is_published(policy, published, monkeypatch):
    """Ray passes on the last 300 characters of a text."""
    from planner.dispatch.ray_internal import policy as policies

    monkeypatch.setattr(policies, "silent_nodes", lambda _nodes: set())
    policy._room, policy._suspects, policy._draining = {}, set(), {}
    rules = Rules(sizes=BatchSizes(global_batch=4, max_micro=2), workers=WorkerRange(least=1, most=2), has_eval=False)
    policy._controller = ElasticController(rules, cost=ResizeCost(grow_s=1, shrink_s=1), clock=lambda: 0.0)
    workers = [SimpleNamespace(metadata=SimpleNamespace(node_id=node)) for node in "ab"]
    group = SimpleNamespace(get_workers=lambda: workers, give_up=lambda _silent: None)
    policy._controller.started(("a", "b"))
    error = CodeError(kind="NameError", message="x" * 290, place="/home/me/loop.py:7, in train", traceback="")
    with pytest.raises(TrainingFailed):
        policy.group_failed(group, {1: UserCodeFailed(error, "code", 0)})
    text = f"worker 1 on node b: train() raised NameError: {'x' * 290} (/home/me/loop.py:7, in train). planner does"
    assert published[verdict_key("l")].startswith(text)


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
    policy._tell_driver(Message(text="all workers stop"))
    hear(policy, {"step": 0})
    assert published[state_key("l")] == "all workers stop"


def test_the_live_status_has_the_time_that_is_left_of_a_stop(policy, published):
    """The terminal gets the text of a stop once. What is told after it stays as it is."""
    shown = []
    policy._publisher = SimpleNamespace(publish=lambda *_, why, **__: shown.append(why))
    policy._group, policy._hosts = None, {}
    policy._controller = SimpleNamespace(stop=Message(text="about 9 s"), events=(), state=None)
    nothing = SimpleNamespace(kind="nothing")
    policy._tell_driver_of_stop(policy._controller.stop)
    for text in ("about 9 s", "about 7 s"):
        policy._controller.stop = Message(text=text)
        policy._publish(None, nothing)
    assert published[state_key("l")] == "about 9 s"
    policy._tell_driver(Starts(size=2, how="after_stop"))
    policy._publish(None, nothing)
    assert shown == ["about 9 s", "about 7 s", "continuing with 2 workers"]


@pytest.mark.usefixtures("published")
def test_workers_that_have_parked_wait_for_room_and_not_for_a_commit(policy):
    """Their step is durable or in memory by then."""
    shown = []
    policy._publisher = SimpleNamespace(publish=lambda *_, why, **__: shown.append(why))
    policy._group, policy._hosts = None, {}
    parked = Waiting(known=None, group=None, most=2)
    decision = SimpleNamespace(events=(WaitsForRoom(room=1, least=2),))
    stop = Message(text="a commit")
    policy._controller = SimpleNamespace(stop=stop, events=(), state=parked, next_decision=lambda _: decision)
    policy._tell_driver_of_stop(stop)
    policy._publish(None, SimpleNamespace(kind="nothing"))
    assert shown == ["waiting: room for 1, but workers.min is 2"]


class TestMemory:
    """What the policy passes on between the controller, the workers and the keepers."""

    @pytest.mark.parametrize("facts", [{}, {"is_held": False}, {"is_held": True}])
    def test_a_worker_that_parks_says_whether_its_step_is_only_in_memory(self, policy, facts):
        heard = []
        policy._controller = SimpleNamespace(committed=lambda *times, is_held: heard.append((times, is_held)))
        hear(policy, {PARKED: True, "commit_s": 0.5, "durable_after_s": 0.7, **facts})
        hear(policy, {PARKED: True, "commit_s": 9.0, "durable_after_s": 9.0, "is_held": True}, rank=1)
        assert heard == [((0.5, 0.7), facts.get("is_held", False))]
        assert policy._parked == {0, 1}

    @pytest.mark.parametrize("in_memory", [True, False])
    def test_each_worker_is_told_whether_the_stop_may_stay_in_memory(self, policy, published, in_memory):
        asked = []
        execute = SimpleNamespace(remote=lambda function, *arguments: asked.append((function, arguments)))
        workers = [SimpleNamespace(actor=SimpleNamespace(execute=execute))] * 2
        policy._group, policy._controller = object(), SimpleNamespace(stop=Message(text="soon"))
        policy._do(Act(kind="stop", in_memory=in_memory), SimpleNamespace(workers=workers))
        assert asked == [(request_stop, (in_memory,))] * 2
        assert published[state_key("l")] == "soon"

    def test_a_stop_may_trust_in_keepers_if_the_census_says_so(self, policy):
        asked = []
        policy._room, policy._draining, policy._is_ending, policy._group = {}, {}, False, None
        policy._worker_progress = SimpleNamespace(total=lambda _workers: 0)
        workers = [SimpleNamespace(metadata=SimpleNamespace(node_id=node)) for node in "ab"]
        assert not policy._view(workers).can_hold
        policy._census = SimpleNamespace(can_hold=lambda nodes: asked.append(nodes) or True)
        assert policy._view(workers).can_hold
        assert asked == [("a", "b")]

    def test_what_is_lost_at_the_end_is_told_to_the_driver(self, policy, published):
        """Workers that have parked write no ledger."""
        policy._group = object()
        worker = SimpleNamespace(actor=SimpleNamespace(execute=SimpleNamespace(remote=lambda *_: None)))
        policy._do(
            Act(kind="end", events=(EndsWithLoss(step=7, is_sure=True, durable_step=0),)),
            SimpleNamespace(workers=[worker]),
        )
        assert published[state_key("l")] == "the run ends: step 7 is only in memory, and is lost"
        assert published[end_reply_key("l")] == "yes"

    def test_a_group_that_starts_is_noted_before_its_workers_ask(self, policy, published):  # noqa: ARG002
        begun = []
        policy._census = SimpleNamespace(mark_start=lambda: begun.append(True))
        start(policy)
        assert begun == [True]

    def test_the_census_gets_what_the_cluster_shows(self, policy):
        orders = []
        policy._census = SimpleNamespace(order=lambda *order: orders.append(order))
        policy._places = {"a": "here"}
        rules = Rules(
            sizes=BatchSizes(global_batch=8, max_micro=4), workers=WorkerRange(least=1, most=4), has_eval=False
        )
        policy._controller = ElasticController(rules, cost=ResizeCost(grow_s=1.0, shrink_s=1.0), clock=lambda: 0.0)
        policy._care_for_keepers(View(room={"a": 1}, draining={"b": 3.0}))
        assert orders == [(Wanted(nodes=frozenset("a"), leaving=frozenset("b")), {"a": "here"})]


def test_a_group_that_starts_finds_how_long_its_first_collectives_may_wait(policy, published, monkeypatch):
    """Longer than the controller waits at that size: at one worker, the first round may take eight times as long."""
    rules = Rules(sizes=BatchSizes(global_batch=8, max_micro=8), workers=WorkerRange(least=1, most=8), has_eval=False)
    policy._controller = ElasticController(rules, cost=ResizeCost(grow_s=1.0, shrink_s=1.0), clock=lambda: 0.0)
    policy._suspects, policy._room = set(), {}
    monkeypatch.setattr(worker, "kv_get", lambda key: published.get(key, ""))
    assert worker.collectives_s("l") == 0.0
    policy.on_controller_start_worker_group(scaling_config=None, num_workers=8)
    assert worker.collectives_s("l") == FIRST_COLLECTIVES_S
    policy._controller.started(tuple("abcdefgh"))
    policy.on_controller_start_worker_group(scaling_config=None, num_workers=1)
    assert worker.worker_hooks(SimpleNamespace(launch_id="l")).collectives_s() == 8 * FIRST_COLLECTIVES_S


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


def test_a_view_has_the_nodes_that_are_dead_for_ray_and_those_that_do_not_answer(policy, monkeypatch):
    from planner.dispatch.ray_internal import policy as policies

    ray = SimpleNamespace(
        get=lambda answer, **_: answer,
        nodes=lambda: [{"NodeID": node, "Alive": node != "c"} for node in "abc"],
        _private=SimpleNamespace(state=SimpleNamespace(state=SimpleNamespace(get_draining_nodes=dict))),
    )
    monkeypatch.setattr(policies, "ray", ray)
    monkeypatch.setattr(policies, "kv_get", lambda _key: "")
    reserved = SimpleNamespace(remote=lambda _requester, **_: {node: {"CPU": 1.0} for node in "abc"})
    monkeypatch.setattr(policies.Policy, "_autoscaling_coordinator", SimpleNamespace(get_reserved_resources=reserved))
    policy._requester_id, policy._suspects, policy._probed_s = "r", {"b"}, float("inf")
    policy._controller.bad_nodes = frozenset()
    policy._group, policy._is_ending, policy._worker_progress = None, False, SimpleNamespace(total=lambda _workers: 0)
    policy.scaling_config = SimpleNamespace(_resources_per_worker_not_none={"CPU": 1}, max_workers=64)
    assert policy._look()
    view = policy._view([])
    assert (dict(view.room), view.dead) == ({"a": 1}, {"b", "c"})


def test_a_failed_group_leaves_no_dead_node_to_the_next_one(policy, published, monkeypatch):  # noqa: ARG001
    """Nodes die together, and the group has workers on one of them. Only that one explains its failure."""
    from planner.dispatch.ray_internal import policy as policies

    failures = []
    monkeypatch.setattr(policies, "silent_nodes", lambda nodes: nodes & {"b", "c"})
    policy._room, policy._draining, policy._suspects = dict.fromkeys("abcd", 1), {}, set()
    policy._controller.failed = lambda dead, blamed, *_: failures.append((dead, blamed))
    workers = [SimpleNamespace(metadata=SimpleNamespace(node_id=node)) for node in "ab"]
    group = SimpleNamespace(get_workers=lambda: workers, give_up=lambda _nodes: None)
    policy.group_failed(group, {0: RuntimeError("connection reset")})
    assert failures == [({"b"}, frozenset())]
    assert policy._suspects == {"b", "c"}


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
        self._controller = SimpleNamespace(note=lambda _event: None)
        self._autoscaler = SimpleNamespace(asked=0, shortage=None, verdict=self._verdict)
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


def test_events_are_told_to_the_worker_that_writes_the_ledger(policy):
    """Each once, in order."""
    told = []
    execute = SimpleNamespace(remote=lambda function, event: told.append((function, event)))
    workers = [SimpleNamespace(actor=SimpleNamespace(execute=execute)), SimpleNamespace(actor=None)]
    policy._group = object()
    events = (Message(text="a note"), Waited(waited_s=40.0))
    policy._do(Act(events=events), SimpleNamespace(workers=workers))
    assert told == [(post_event, event) for event in events]


def test_why_a_hung_group_ends_the_run_is_published(policy, published, monkeypatch):
    """The driver shows the whole text, and Ray's controller gets an error of ours."""

    def gives_up(_view):
        raise GaveUp(GivesUp(reason=Hung(silence_s=600, limit_s=600, deaf=0), why="no_progress", failures=6))

    nothing = {
        name: lambda *_: None for name in ("_turned", "_maybe_send_resource_request", "_hear", "_hear_autoscaler")
    }
    for name, effect in {**nothing, "_look": lambda: True, "_view": lambda _workers: None}.items():
        monkeypatch.setattr(policy, name, effect)
    policy._looked_s, policy._controller = -math.inf, SimpleNamespace(step=gives_up)
    text = "the workers failed 6 times in a row without progress: no progress for 10 min (limit 10 min)"
    with pytest.raises(TrainingFailed, match=re.escape(text)):
        policy.make_decision_for_running_worker_group(SimpleNamespace(num_workers=2, workers=[]), None)
    assert published[verdict_key("l")] == text


class TestPublishing:
    """The live status in the cluster's key-value store."""

    @pytest.fixture
    def store(self, monkeypatch):
        """What is published, oldest first, and a clock that the test sets."""
        from planner.dispatch import live_status

        store = SimpleNamespace(published=[], now_s=1000.0, fails=False)

        def put(key, value):
            if store.fails:
                raise ConnectionError
            assert key == status_key("l")
            store.published.append(RunStatus.model_validate_json(value))

        monkeypatch.setattr(live_status, "kv_put", put)
        monkeypatch.setattr(
            live_status, "time", SimpleNamespace(monotonic=lambda: store.now_s, time=lambda: store.now_s)
        )
        return store

    @pytest.fixture
    def publish(self, store):
        from planner.dispatch.live_status import StatusPublisher

        rules = Rules(
            sizes=BatchSizes(global_batch=8, max_micro=4), workers=WorkerRange(least=2, most=4), has_eval=False
        )
        cost = ResizeCost(grow_s=1.0, shrink_s=1.0)
        controller = ElasticController(rules, cost=cost, clock=lambda: store.now_s)
        publisher = StatusPublisher("l")

        def publish(*nodes, at_once=False, newcomers=list, draining=None, room=("a",)):
            if nodes and isinstance(controller.state, Idle):
                controller.started(nodes)
            view = View(room=dict.fromkeys(room, 1), draining=draining or {}, nodes=nodes)
            controller.step(view)
            publisher.publish(controller, view, newcomers=newcomers, hosts={"a": "one"}, why="", at_once=at_once)

        return publish

    def test_it_says_who_works_where_and_what_comes_next(self, store, publish):
        publish()
        publish("a", "b", at_once=True, newcomers=lambda: ["", "c"], draining={"b": 30.0})
        waiting, training = store.published
        assert (waiting.state, waiting.next) == ("Idle", "waiting: room for 1, but workers.min is 2")
        assert [(node.node, node.host, node.room, node.leaves_s) for node in training.nodes] == [
            ("a", "one", 1, None),
            ("b", "", 0, 1030.0),
        ]
        found = [(worker.rank, worker.node, worker.state) for worker in training.workers]
        assert found == [(0, "a", "starting"), (1, "b", "leaving"), (None, "", "warming"), (None, "c", "warming")]

    def test_it_is_published_at_most_once_a_second_and_when_something_changed(self, store, publish):
        """Unchanged, it is repeated after five seconds; an act is published at once."""
        publish()
        for passed_s, number, at_once in [
            (0.5, 1, False),
            (0.5, 2, True),
            (1.5, 2, False),
            (3.0, 2, False),
            (0.6, 3, False),
        ]:
            store.now_s += passed_s
            publish(at_once=at_once)
            assert len(store.published) == number
        store.now_s += 1.1
        publish(room=("a", "c"))
        assert len(store.published) == 4

    def test_no_failure_reaches_the_controller(self, store, publish):
        """The head is away, or a newcomer cannot be asked. The next status is published again."""

        def fail():
            raise RuntimeError

        store.fails = True
        publish(at_once=True)
        store.fails = False
        publish(at_once=True, newcomers=fail)
        assert store.published == []
        publish()
        assert len(store.published) == 1
