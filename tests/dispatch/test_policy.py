"""The policy's ears and mouth, without a cluster."""

from types import SimpleNamespace

import pytest

from planner.dispatch.private import policy as policies
from planner.dispatch.private.policy import Policy
from planner.dispatch.signals import state_key


@pytest.fixture
def words(monkeypatch):
    """What stands in the cluster's key-value store."""
    found = {}
    monkeypatch.setattr(policies, "put_word", found.__setitem__)
    return found


@pytest.fixture
def policy():
    """Of a launch whose group of two was just started."""
    policy = object.__new__(Policy)
    policy._launch_id, policy._state, policy._loading, policy._parked = "l", "", "", set()
    policy._steward = SimpleNamespace(
        started=lambda _nodes: None, reported=lambda _metrics: None, take_words=lambda: (), untold=()
    )
    return policy


def start(policy):
    workers = [SimpleNamespace(metadata=SimpleNamespace(node_id=node)) for node in "ab"]
    policy.group_started(SimpleNamespace(get_workers=lambda: workers))


def hear(policy, metrics, rank=0):
    worker = SimpleNamespace(training_report=SimpleNamespace(metrics=metrics))
    policy._hear(SimpleNamespace(worker_statuses={rank: worker}))


def test_a_group_that_steps_is_no_longer_loading(policy, words):
    """Each group anew; before the first step there may be reports of progress."""
    for _ in range(2):
        start(policy)
        hear(policy, {"progress": 1, "of": 2})
        hear(policy, {"step": 0}, rank=1)
        assert words[state_key("l")] == "2 workers started; loading"
        hear(policy, {"step": 0})
        assert words[state_key("l")] == ""


def test_what_was_said_since_the_start_stays(policy, words):
    """A group that is to stop before its first step was heard of."""
    start(policy)
    policy._tell_driver("all workers stop at the same step and commit")
    hear(policy, {"step": 0})
    assert words[state_key("l")] == "all workers stop at the same step and commit"
