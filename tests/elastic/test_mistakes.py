"""A mistake in the user's own code ends a run at once where another try would only meet it again."""

import pytest
from message import Message
from simulated_cluster import Cluster

from planner.elastic.mistakes import GaveUp, Mistake
from planner.events.failures import GivesUp

TYPO = ("AttributeError", "'Run' object has no attribute 'shrad'", "loop.py:24, in train")
FAILED = Message(text="worker 0 on node a: it failed")


def ends(cluster, mistake, why, failures=1):
    with pytest.raises(GaveUp) as caught:
        fail(cluster, mistake)
    assert caught.value.event == GivesUp(reason=FAILED, why=why, failures=failures)


def fail(cluster, mistake=None, dead=()):
    cluster.fail(dead=dead, reason=FAILED, mistake=mistake)


def test_a_mistake_before_the_first_step_ends_the_run_at_once():
    """No progress is possible, and nothing was lost."""
    cluster = Cluster(2).run(1)
    ends(cluster, Mistake(error=TYPO, num_steps=0), "mistake_at_start")


def test_other_failures_before_the_first_step_are_tried_again():
    """A lost node, a broken collective, a CUDA error: up to six in a row, as before."""
    cluster = Cluster(2)
    for _ in range(5):
        fail(cluster.run(1))
    ends(cluster.run(1), None, "no_progress", failures=6)


def test_a_mistake_while_a_node_was_lost_is_tried_again():
    """What the code then met may come from the lost node."""
    cluster = Cluster(3).run(1)
    node = cluster.group[0]
    cluster.nodes.remove(node)
    fail(cluster, Mistake(error=TYPO, num_steps=0), dead={node})
    assert cluster.run(60).step > 0


def test_a_mistake_after_the_first_step_is_tried_once_more():
    """It may depend on chance. At the same line again, without a new step, it does not."""
    cluster = Cluster(2).run(60)
    reached = cluster.step
    assert reached
    fail(cluster, Mistake(error=TYPO, num_steps=reached))
    cluster.run(1)
    ends(cluster, Mistake(error=TYPO, num_steps=0), "same_mistake")


def test_a_mistake_of_one_node_alone_is_tried_as_often_as_other_failures():
    """It may lack a package or a mount. On another node, the same line is a mistake of the code."""
    cluster = Cluster(3).run(60)
    for _ in range(5):
        fail(cluster.run(1), Mistake(error=TYPO, num_steps=0, node="n1"))
    ends(cluster.run(1), Mistake(error=TYPO, num_steps=0, node="n2"), "same_mistake")


def test_a_mistake_that_comes_again_after_new_steps_is_tried_again():
    """As is another one, and one after a failure of another kind."""
    cluster = Cluster(2).run(60)
    fail(cluster, Mistake(error=TYPO, num_steps=5))
    fail(cluster.run(1), Mistake(error=("ValueError", "", "loop.py:30"), num_steps=0))
    fail(cluster.run(1), Mistake(error=TYPO, num_steps=0))
    fail(cluster.run(1))
    fail(cluster.run(1), Mistake(error=TYPO, num_steps=0))
    before = cluster.step
    assert cluster.run(300).step > before
    fail(cluster, Mistake(error=TYPO, num_steps=5))
