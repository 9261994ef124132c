"""What Ray's calls lead to, in order, without a cluster."""

import re
import time
from types import SimpleNamespace

import pytest
from made_up_groups import elastic_controller, silent_controller

from planner.dispatch.mailbox import verdict_key
from planner.elastic.mistakes import GaveUp
from planner.elastic.view import Act
from planner.errors import TrainingFailed
from planner.events.failures import GivesUp, Hung

pytestmark = pytest.mark.usefixtures("ray_environment")

GROUP = SimpleNamespace(num_workers=2, workers=[])


class Recorder:
    """Notes the calls of its methods in a list that several share. Methods return what `answers` says."""

    def __init__(self, name, calls, **answers):
        self.__dict__.update(_name=name, _calls=calls, _answers=answers)

    def __getattr__(self, name):
        if name in {"hosts", "shortage", "group"}:
            return None
        if name == "heartbeat":
            return self

        def call(*_arguments, **_options):
            self._calls.append(f"{self._name}.{name}")
            return self._answers.get(name)

        return call


@pytest.fixture
def make(monkeypatch):
    """`make(act, is_due=, looks=)` -> (the policy of a controller that decides so, the calls of its parts)."""
    from planner.dispatch.ray_internal import policy as policies
    from planner.dispatch.ray_internal.reporter import Reporter

    monkeypatch.setattr(policies, "time", SimpleNamespace(sleep=lambda _s: None))

    def make(act, *, is_due=True, looks=True):
        calls = []

        def step(_view):
            calls.append("step")
            if isinstance(act, Exception):
                raise act
            return act

        policy = policies.Policy(
            SimpleNamespace(_resources_per_worker_not_none={"CPU": 1}),
            silent_controller(step=step),
            run="r",
            launch_id="l",
            warm_up=lambda: None,
            keep_processes=True,
            make_census=lambda: None,
        )
        real = Reporter(None, "l", "")
        policy._observer = Recorder("observer", calls, is_due=is_due, look=looks)
        policy._actuator = Recorder("actuator", calls)
        policy._autoscaler = Recorder("autoscaler", calls)
        policy._reporter = Recorder("reporter", calls, verdict=real.verdict())
        return policy, calls

    return make


BEFORE_A_LOOK = ["reporter.turned", "actuator.request_nodes"]
DECISION = ["actuator.hear_autoscaler", "observer.view", "reporter.note_capacity", "step", "actuator.order_keepers"]


@pytest.mark.parametrize(
    ("act", "size"), [(Act(kind="resize", world_size=3), 3), (Act(), None), (Act(kind="end"), None)]
)
def test_without_a_group_ray_starts_one_as_the_controller_decides(make, act, size):
    policy, calls = make(act)
    decision = policy.make_decision_for_non_running_worker_group()
    assert getattr(decision, "num_workers", None) == size
    before = ["reporter.turned", "observer.set_group", "actuator.request_nodes", "observer.look"]
    assert calls == [*before, *DECISION, "reporter.tell_without_group", "reporter.publish"]


def test_a_cluster_that_does_not_answer_starts_no_group(make):
    policy, calls = make(Act(kind="resize", world_size=3), looks=False)
    assert not hasattr(policy.make_decision_for_non_running_worker_group(), "num_workers")
    assert "step" not in calls


@pytest.mark.parametrize(
    ("act", "size"), [(Act(kind="resize", world_size=3), 3), (Act(), None), (Act(kind="stop"), None)]
)
def test_a_group_is_resized_as_the_controller_decides(make, act, size):
    policy, calls = make(act)
    decision = policy.make_decision_for_running_worker_group(GROUP, None)
    assert getattr(decision, "num_workers", None) == size
    looks = [*BEFORE_A_LOOK, "observer.hear", "observer.is_due", "observer.look"]
    decides = [*DECISION[:3], "reporter.verdict", *DECISION[3:]]
    assert calls == [*looks, *decides, "actuator.do", "reporter.publish"]


@pytest.mark.parametrize(("is_due", "looks"), [(False, True), (True, False)])
def test_reports_are_heard_at_each_poll_and_decisions_made_at_each_look(make, is_due, looks):
    policy, calls = make(Act(kind="resize", world_size=3), is_due=is_due, looks=looks)
    assert not hasattr(policy.make_decision_for_running_worker_group(GROUP, None), "num_workers")
    assert "observer.hear" in calls
    assert "step" not in calls


def test_a_bug_in_the_controller_does_not_end_a_group(make):
    """Nothing is done, and nothing told."""
    policy, calls = make(ZeroDivisionError())
    assert not hasattr(policy.make_decision_for_running_worker_group(GROUP, None), "num_workers")
    assert calls[-1] == "step"


def test_why_a_hung_group_ends_the_run_is_published(make, monkeypatch):
    """The driver shows the whole text, and Ray's controller gets an error of ours."""
    from planner.dispatch.ray_internal import reporter

    published = {}
    monkeypatch.setattr(reporter, "kv_put", published.__setitem__)
    policy, _ = make(GaveUp(GivesUp(reason=Hung(silence_s=600, limit_s=600, deaf=0), why="no_progress", failures=6)))
    text = "the workers failed 6 times in a row without progress: no progress for 10 min (limit 10 min)"
    with pytest.raises(TrainingFailed, match=re.escape(text)):
        policy.make_decision_for_running_worker_group(GROUP, None)
    assert published[verdict_key("l")] == text


@pytest.fixture
def started(monkeypatch):
    """(what happens at the start of Ray's controller, in order; `Policy`)."""
    from planner.dispatch.ray_internal import actuator, autoscaler, policy, reporter

    happens = []
    beats = SimpleNamespace(start=lambda: happens.append("heartbeat"))
    monkeypatch.setattr(reporter, "HeartbeatSender", lambda _put: beats)
    monkeypatch.setattr(actuator, "remove_placement_groups", lambda name: happens.append(f"remove {name}"))
    monkeypatch.setattr(autoscaler, "kv_get", lambda key: happens.append(f"read {key}"))
    monkeypatch.setattr(autoscaler, "kv_put", lambda key, value: happens.append(f"{key}={value}"))
    monkeypatch.setattr(autoscaler.Autoscaler, "ask", lambda _, number, _floor: happens.append(f"ask for {number}"))
    ray = SimpleNamespace(request_resources=None)
    monkeypatch.setattr(policy.ElasticScalingPolicy, "_autoscaling_coordinator", ray)
    return happens, policy.Policy


def test_the_heartbeat_starts_first_and_old_places_go_before_new_ones_are_asked_for(started):
    happens, policy_class = started
    scaling = SimpleNamespace(
        _resources_per_worker_not_none={"CPU": 1}, _label_selector_per_worker=lambda _number: None
    )
    policy = policy_class(
        scaling,
        silent_controller(worth_asking=(1, 2)),
        run="r",
        launch_id="l",
        warm_up=lambda: None,
        keep_processes=True,
        make_census=lambda: happens.append("census"),
    )
    policy.after_controller_start(SimpleNamespace(run_id="7"))
    asked = ["ask for 2", "requester-r=train-7", "census"]
    assert happens == ["heartbeat", "read requester-r", "remove planner-l-", *asked]


def test_a_pickled_policy_keeps_its_parts_together():
    """The driver makes it, and Ray pickles it for the controller's process: all parts still share one of each."""
    from ray import cloudpickle

    from planner.dispatch.ray_internal.policy import Policy

    made = Policy(
        SimpleNamespace(_resources_per_worker_not_none={"CPU": 1}),
        elastic_controller(clock=time.monotonic),
        run="r",
        launch_id="l",
        warm_up=str,
        keep_processes=True,
        make_census=str,
    )
    policy = cloudpickle.loads(cloudpickle.dumps(made))
    assert policy.groups.listener is policy._actuator._observer is policy._observer
    assert policy._actuator._reporter is policy._observer._reporter is policy._reporter
    assert policy._actuator._autoscaler is policy._observer._autoscaler is policy._autoscaler
    for part in (policy._actuator, policy._observer, policy._reporter, policy._reporter._publisher):
        assert part._controller is policy._controller
