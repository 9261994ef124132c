"""From a cloud's notice to a smaller group that has lost nothing, with the agent as users start it."""

import contextlib
import os
import subprocess
import sys
import threading
import time

import pytest
from live_runs import LIMIT_S, Script, fit, make_job, notes, run_of
from metadata_server import AwsMetadata, AzureMetadata, GcpMetadata, Metadata

from planner.dispatch.ray_internal import node_drainer
from planner.dispatch.ray_internal.node_drainer import NodeDrainer
from planner.errors import RunError, UserError
from planner.provenance.audit import audit

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


@contextlib.contextmanager
def agent(tmp_path, *options, **variables):
    """`planner notice-agent` in a process of its own: the process, and what it has written so far."""
    log = tmp_path / "notice-agent.log"
    command = [sys.executable, "-m", "planner.cli", "notice-agent", *options]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **variables})
    try:
        yield process, log.read_text
    finally:
        process.kill()
        process.wait()


def wait_until(condition, within_s=LIMIT_S):
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never came to that"
        time.sleep(0.1)


def shrinks_without_loss(cluster, tmp_path, server, *options):
    """Three workers; the metadata server of the newest node's machine begins to answer; two go on."""
    job = make_job(tmp_path, steps=2000, most=3, every_steps=1000)
    node = cluster.nodes()[-1]
    where = ["--address", cluster.address, "--node-id", node, "--endpoint", server.url]
    with agent(tmp_path, *where, *options) as (process, said):

        def take():
            wait_until(lambda: "watching" in said())
            server.take()

        def leave():
            cluster.kill_node(node)
            os.kill(os.getpid(), 2)

        script = Script(job, [(3, 5, take), (2, 10, leave)])
        with script, pytest.raises(KeyboardInterrupt):
            fit(job)
        assert script.done == 2, said()
        # The node has gone, and with it whom the agent works for.
        assert process.wait(LIMIT_S) == 0
        assert said().count("passed on to Ray") == 1
        assert "has left its Ray cluster" in said()
    result = audit(run_of(job))
    assert result.clean, result.findings
    assert result.recomputed == 0
    assert [phase.world_size for phase in result.phases] == [3, 2]
    assert any("resize: notice for 1 worker of 3" in note for note in notes(job))


def test_a_notice_of_aws_shrinks_the_job_and_loses_no_step(cluster, tmp_path):
    """Token, polls that bring 404, the instance action, Ray's drain, a commit, and one worker less."""
    with AwsMetadata() as server:
        shrinks_without_loss(cluster, tmp_path, server)
        assert {path for _, path, _ in server.asked} >= {"/latest/api/token"}


@pytest.mark.slow
@pytest.mark.parametrize("make", [GcpMetadata, AzureMetadata])
def test_a_notice_of_the_others_does_the_same(cluster, tmp_path, make):
    """Thirty seconds of notice."""
    with make() as server:
        shrinks_without_loss(cluster, tmp_path, server)


def refuse():
    raise RunError("not accepted")


class TestOwnNode:
    def test_a_node_is_found_lives_and_goes(self, cluster):
        node = NodeDrainer.find(cluster.address, cluster.nodes()[-1])
        assert node.is_alive()
        # Nothing runs on it: Ray ends it as soon as it is drained.
        node.drain(60, "test")
        wait_until(lambda: not node.is_alive())

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

    def test_nobody_at_the_address_is_said_at_once(self):
        with Metadata() as closed:
            pass
        with pytest.raises(RunError, match="nothing listens at"):
            NodeDrainer.find(closed.url.removeprefix("http://"), "")
        with pytest.raises(UserError, match="--address ray://"):
            NodeDrainer.find("ray://", "")
