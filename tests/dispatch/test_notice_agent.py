"""From a cloud's notice to a smaller group that has lost nothing, with the agent as users start it."""

import threading

import pytest
from events import ended, wait_for
from live_runs import Script, fit, make_job, notes, run_of
from metadata_server import AzureMetadata, GcpMetadata, Metadata
from resized_run import agent

from planner.dispatch.ray_internal import node_drainer
from planner.dispatch.ray_internal.node_drainer import NodeDrainer
from planner.errors import RunError, UserError
from planner.provenance.audit import audit

pytestmark = pytest.mark.ray


def test_a_notice_of_aws_shrinks_the_job_and_loses_no_step(resized):
    """Token, polls that bring 404, the instance action, Ray's drain, a hand-over, and one worker less.

    The node has gone, and with it whom the agent works for.
    """
    assert resized.acts_done == 3
    assert "/latest/api/token" in resized.agent.asked
    assert resized.agent.said.count("passed on to Ray") == 1
    assert "has left its Ray cluster" in resized.agent.said
    assert resized.agent.code == 0
    result = audit(run_of(resized.job))
    assert (result.findings, result.recomputed) == ((), 0)
    assert [phase.world_size for phase in result.phases][:2] == [3, 2]
    assert any("resize: notice for 1 worker of 3" in note for note in notes(resized.job))


@pytest.mark.slow
@pytest.mark.parametrize("make", [GcpMetadata, AzureMetadata])
def test_a_notice_of_google_cloud_or_azure_shrinks_the_job_and_loses_no_step(cluster, tmp_path, make):
    """Thirty seconds of notice."""
    job = make_job(tmp_path, steps=1_000_000, most=3, every_steps=1_000_000)
    node = cluster.nodes()[-1]
    with make() as server, agent(cluster, node, server, tmp_path) as (process, said):

        def take():
            script.wait_for(lambda: "watching" in said(), said)
            server.take()

        def leave():
            cluster.kill_node(node)
            script.interrupt()

        with Script(job, [(3, 5, take), (2, 10, leave)]) as script, pytest.raises(KeyboardInterrupt):
            fit(job)
        assert script.done == 2, said()
        assert ended(process)[0] == 0
        assert said().count("passed on to Ray") == 1
        assert "has left its Ray cluster" in said()
    result = audit(run_of(job))
    assert (result.findings, result.recomputed) == ((), 0)
    assert [phase.world_size for phase in result.phases] == [3, 2]
    assert any("resize: notice for 1 worker of 3" in note for note in notes(job))


def refuse():
    raise RunError("not accepted")


class TestOwnNode:
    def test_a_node_is_found_lives_and_goes(self, cluster):
        node = NodeDrainer.find(cluster.address, cluster.nodes()[-1])
        assert node.is_alive()
        # Nothing runs on it: Ray ends it as soon as it is drained.
        node.drain(60, "test")
        wait_for(lambda: not node.is_alive())

    def test_several_nodes_on_a_machine_must_be_told_apart(self, cluster):
        with pytest.raises(
            UserError, match=r"\d nodes of this cluster are on this machine. Choose one, such as --node-id"
        ):
            NodeDrainer.find(cluster.address, "")

    def test_a_node_of_another_cluster_is_none(self, cluster):
        with pytest.raises(RunError, match=r"the cluster at .* has no living node abab"):
            NodeDrainer.find(cluster.address, "ab" * 28)

    def test_a_head_without_room_is_left_alone(self, cluster):
        import ray

        head = next(n["NodeID"] for n in ray.nodes() if n["NodeID"] not in cluster.nodes() and n["Alive"])
        with pytest.raises(UserError, match="not drained"):
            NodeDrainer.find(cluster.address, head)

    def test_a_head_that_takes_the_connection_and_never_answers_is_left(self, monkeypatch):
        """Ray sets no limit to a drain: the agent would sleep through the notice instead of trying again."""
        monkeypatch.setattr(node_drainer, "_ASK_S", 0.1)
        answers = threading.Event()
        with pytest.raises(TimeoutError, match="has not answered"):
            node_drainer._in_time(answers.wait)
        answers.set()
        node_drainer._in_time(answers.wait)
        with pytest.raises(RunError, match="not accepted"):
            node_drainer._in_time(refuse)

    def test_an_address_where_nothing_listens_is_refused_at_once(self):
        with Metadata() as closed:
            pass
        with pytest.raises(RunError, match="nothing listens at"):
            NodeDrainer.find(closed.url.removeprefix("http://"), "")
        with pytest.raises(UserError, match="--address ray://"):
            NodeDrainer.find("ray://", "")
