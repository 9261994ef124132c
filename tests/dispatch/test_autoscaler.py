"""Ray's real autoscaler, on nodes that come and go as a trace says: the job as a user starts it, by `planner run`."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from autoscaler_cluster import AutoscalerCluster
from events import wait_for
from live_runs import Ledger, make_job, notes, run_of
from spot_trace import Trace

from planner.provenance.audit import audit
from planner.store.follow import Follower
from planner.store.records import GenerationRecord

pytestmark = pytest.mark.ray


def elastic_job(tmp_path, *, batch, most, least=1):
    job = make_job(tmp_path, steps=1_000_000, most=most, every_steps=100_000)
    workers = job.workers.model_copy(update={"min": least})
    return job.model_copy(
        update={"workers": workers, "batch": job.batch.model_copy(update={"global_batch": batch, "max_micro": 1})}
    )


@contextlib.contextmanager
def driven(job, tmp_path, cluster):
    """`planner run` against the cluster; interrupted at the end."""
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job.model_dump(mode="json", by_alias=True, exclude_none=True)))
    with (tmp_path / "driver.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "planner.cli", "run", str(file), "--address", cluster.address],
            stdout=log,
            stderr=log,
            env=cluster.environment,
        )
    try:
        yield process
        process.send_signal(signal.SIGINT)
        wait_for(lambda: process.poll() is not None, lambda: said(tmp_path))
        assert process.returncode == 130, said(tmp_path)
    finally:
        process.kill()
        process.wait()


def said(tmp_path):
    return (tmp_path / "driver.log").read_text()


def await_text(tmp_path, text):
    wait_for(lambda: text in said(tmp_path), lambda: said(tmp_path))


def called(command, folder, environment):
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_nodes_come_for_a_job_that_follows_them_and_go_when_it_ends(tmp_path):
    """Asked for 4 of a cluster that may have 3, it starts the 2 that help; one is taken, the other goes when idle."""
    trace = Trace(times_s=(0.0, 1.0), counts=(3, 1))
    job = elastic_job(tmp_path, batch=4, most=4)
    # A long notice, and no node taken for dead that is only slow: nothing is done again, also on a busy machine.
    calm = {"notice_s": 300.0, "quick_health_checks": False}
    with AutoscalerCluster(max_nodes=3, available=trace, idle_s=2.0, **calm) as cluster:
        with driven(job, tmp_path, cluster):
            ledger = Ledger(run_of(job))
            ledger.await_steps(2, 5)
            cluster.begin()
            ledger.await_steps(1, 5)
        cluster.wait_until(lambda cloud: not cloud.nodes())
        assert len(cluster.events("launched")) == 2
        assert len(cluster.events("notice")) == 1
    result = audit(run_of(job))
    assert result.clean, result.findings
    assert result.recomputed == 0
    assert [phase.world_size for phase in result.phases][-2:] == [2, 1]
    assert any("rejected 4 workers: asking for 2" in note for note in notes(job))


@pytest.mark.slow
def test_a_floor_is_asked_for_by_its_label(tmp_path):
    """Of three workers, one is on an on-demand node: the autoscaler starts it for the request, and two spot nodes."""
    job = elastic_job(tmp_path, batch=3, most=3)
    job = job.model_copy(update={"workers": job.workers.model_copy(update={"min_on": "on-demand"})})
    with AutoscalerCluster(max_nodes=3, on_demand=1) as cluster, driven(job, tmp_path, cluster):
        Ledger(run_of(job)).await_steps(3, 5)
        types = [event["type"] for event in cluster.events("launched")]
        assert sorted(types) == ["lasting", "spot", "spot"]
    assert audit(run_of(job)).clean


@pytest.mark.slow
def test_a_floor_that_the_cluster_cannot_have_is_waited_for(tmp_path):
    """Its file has spot nodes alone. The driver says what to do."""
    job = elastic_job(tmp_path, batch=3, most=3)
    job = job.model_copy(update={"workers": job.workers.model_copy(update={"min_on": "on-demand"})})
    with AutoscalerCluster(max_nodes=3) as cluster, driven(job, tmp_path, cluster):
        await_text(tmp_path, "No node has this label. Set it under labels of the node types")
        assert cluster.events("launched") == []


@pytest.mark.slow
def test_a_cloud_that_has_nothing_is_waited_for_and_says_so(tmp_path):
    """Launches are refused for a while; the driver shows why, and begins when there is one."""
    job = elastic_job(tmp_path, batch=4, most=2)
    trace = Trace(times_s=(0.0, 1.0), counts=(0, 2))
    with AutoscalerCluster(max_nodes=2, available=trace) as cluster, driven(job, tmp_path, cluster):
        await_text(tmp_path, "asked for 2 workers, but the cloud gives no spot node")
        cluster.begin()
        Ledger(run_of(job)).await_steps(2, 10)
    assert audit(run_of(job)).clean


@pytest.mark.slow
def test_a_trace_is_followed_without_a_step_lost(tmp_path):
    """Up and down by one or more at a time: nodes that are taken get notice, and no run has more than there are.

    Which gains the job takes is its own choice: workers here share two cores, and it measures what they are worth.
    """
    trace = Trace(times_s=(0, 10, 20, 30, 40, 50, 60), counts=(2, 3, 1, 2, 3, 1, 3))
    job = elastic_job(tmp_path, batch=12, most=3)
    with AutoscalerCluster(max_nodes=3, available=trace, notice_s=60.0) as cluster:
        with driven(job, tmp_path, cluster):
            ledger = Ledger(run_of(job))
            ledger.await_steps(2, 10)
            cluster.begin()
            cluster.wait_until(lambda cloud: len(cloud.nodes()) == 3 and len(cloud.events("notice")) >= 4)
        assert "notice failed" not in {event["event"] for event in cluster.events()}
    result = audit(run_of(job))
    assert result.clean, result.findings
    assert result.recomputed == 0
    assert len(result.phases) >= 3


@pytest.mark.slow
def test_a_job_sent_by_rays_own_command_with_a_token_gets_its_nodes(tmp_path):
    """`ray job submit` as the dry run prints it: the driver runs on the head, nodes come, and go when it is done."""
    token = tmp_path / "token"
    token.write_text("open-sesame-0123456789")
    token.chmod(0o600)
    job = elastic_job(tmp_path, batch=4, most=2)
    job = job.model_copy(update={"data": job.data.model_copy(update={"path": "rows.jsonl"})})
    job = job.model_copy(update={"train": job.train.model_copy(update={"steps": 400})})
    (tmp_path / "job.yaml").write_text(json.dumps(job.model_dump(mode="json", by_alias=True, exclude_none=True)))
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    # Nodes know what is sent to them, not this checkout.
    with AutoscalerCluster(max_nodes=3, idle_s=3.0, environment=environment, nodes_path="") as cluster:
        clients = {
            **cluster.environment,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        asked = [sys.executable, "-m", "planner.cli", "submit", "job.yaml", "--address", cluster.dashboard]
        shown = called([*asked, "--dry-run", "--json"], tmp_path, clients)
        assert shown.returncode == 0, shown.stderr
        by_hand = shlex.split(json.loads(shown.stdout)["by_hand"])
        assert by_hand[:3] == ["ray", "job", "submit"]
        assert called(by_hand, tmp_path, {**clients, "RAY_AUTH_MODE": "disabled"}).returncode != 0
        assert not cluster.events("asked")
        done = called(by_hand, tmp_path, clients)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "finished: 400 steps committed" in done.stdout + done.stderr
        cluster.wait_until(lambda cloud: not cloud.nodes())
        assert len(cluster.events("launched")) == 2
    phases = [
        record.world_size for record in Follower(run_of(job)).new_records() if isinstance(record, GenerationRecord)
    ]
    assert phases[-1] == 2
