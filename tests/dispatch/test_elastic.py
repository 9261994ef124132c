"""Resizes on a real Ray cluster: planned ones lose nothing, survivors keep their processes, losses are survived."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
from events import EVENT_S
from held_writes import Gate, held_start
from live_runs import INTERRUPT, Script, fit, make_job, notes, run_of, workers_of

from planner.dispatch.ray_internal import drain_node
from planner.files import read_job
from planner.provenance.audit import audit
from planner.runner.replay_run import replay_run
from planner.store.run_status import read_status

pytestmark = pytest.mark.ray


def sizes(result):
    return [phase.world_size for phase in result.phases]


def retire(cluster):
    """Give the newest node notice, as a cloud does. Its run takes it away when its worker has gone."""
    node = cluster.nodes()[-1]
    drain_node(node, EVENT_S, "test")
    return node


def test_a_notice_and_a_new_node_lose_no_step_and_keep_processes(resized):
    """3 -> 2 -> 3 by notice and by a new node: nothing is done again, and two of three processes live through it."""
    assert resized.acts_done == 3
    result = audit(run_of(resized.job))
    assert result.clean, result.findings
    assert sizes(result) == [3, 2, 3]
    assert result.recomputed == 0
    before, between, after = (resized.workers[generation] for generation in (1, 2, 3))
    assert len(before) == len(after) == 3
    assert between < before
    assert between < after
    said = " ".join(notes(resized.job))
    assert "resize: notice for 1 worker of 3" in said
    assert "resize: 2 -> 3" in said


def test_the_ledger_has_the_nodes_of_the_run(resized):
    """So `planner simulate --replay` plays what the run had: three nodes, a notice, and another node in its place."""
    assert resized.acts_done == 3
    found = replay_run(resized.job.run_path, ("ours", "stock", "optimum"), {})
    run, ours, stock, optimum = found.simulated.outcomes
    assert found.simulated.assumed[0].startswith("nodes come, go and get notice as the ledger has them. A node holds 1")
    first, *others = found.simulated.lives.lives
    assert first.arrives_s == 0
    assert sum(life.has_notice for life in (first, *others)) >= 1
    assert len({life.node for life in others}) >= 3
    assert found.simulated.lives.peak >= 3
    assert [change.workers for change in run.changes] == [3, 2, 3]
    assert (run.losses, run.redone_s) == (0, 0)
    assert run.total_s == pytest.approx(ours.total_s) == pytest.approx(optimum.total_s)
    assert 0 < stock.steps <= optimum.steps


def test_the_live_status_names_each_worker_its_node_and_its_state(resized):
    """Through a shrink by notice: as Ray places the workers; and it is gone with its driver."""
    assert resized.acts_done == 3
    assert [worker.rank for worker in resized.full.workers] == [0, 1, 2]
    assert {worker.node for worker in resized.full.workers} == resized.nodes
    assert resized.full.state == "Running"
    assert "no resize" in resized.full.next
    assert resized.stopping.state == "Stopping"
    assert {worker.node for worker in resized.stopping.workers} == resized.nodes
    assert {worker.node for worker in resized.rest.workers} == resized.nodes - {resized.gone}
    assert resized.launches == {resized.launch.launch_id}
    assert read_status(run_of(resized.job).storage) is None


@pytest.mark.slow
def test_processes_are_not_kept_where_the_job_says_so(cluster, tmp_path):
    """workers.keep_processes: never; and still no step is done again."""
    job = make_job(tmp_path, steps=2000, most=3, every_steps=100)
    job = job.model_copy(update={"workers": job.workers.model_copy(update={"keep_processes": "never"})})
    seen, gone = {}, []

    def drain():
        seen["before"] = set(workers_of(cluster))
        gone.append(retire(cluster))

    def look():
        seen["after"] = set(workers_of(cluster))
        script.interrupt()

    with Script(job, [(3, 20, drain), (2, 20, look)]) as script, pytest.raises(KeyboardInterrupt):
        fit(job)
    cluster.kill_node(gone[0])
    assert script.done == 2
    result = audit(run_of(job))
    assert result.clean, result.findings
    assert result.recomputed == 0
    assert not seen["before"] & seen["after"]


@pytest.mark.slow
def test_a_survivor_that_dies_in_the_midst_of_a_change_costs_no_step(cluster, tmp_path):
    """Killed while the next group starts: new processes for everybody, and the run goes on from that very step."""
    job = make_job(tmp_path, steps=2000, most=3, every_steps=1000)
    starts, gone = Gate(tmp_path), []

    def drain_and_kill():
        starts.close()
        gone.append(retire(cluster))
        survivors = script.wait_for(lambda: [*(tmp_path / "starting").glob("*")])
        os.kill(int(survivors[0].name), signal.SIGKILL)
        starts.open()

    with Script(job, [(3, 20, drain_and_kill), (2, 20, INTERRUPT)]) as script, pytest.raises(KeyboardInterrupt):
        fit(job, hooks=partial(held_start, str(tmp_path)))
    cluster.kill_node(gone[0])
    assert script.done == 2
    result = audit(run_of(job))
    assert result.clean, result.findings
    assert result.recomputed == 0


@pytest.mark.slow
def test_a_worker_that_hangs_is_given_up(cluster, tmp_path):
    """SIGSTOP: no error ever comes, and no step either."""
    job = make_job(tmp_path, steps=2000, most=2, every_steps=10)

    def stop_one():
        os.kill(workers_of(cluster)[0], signal.SIGSTOP)

    with (
        Script(job, [(2, 30, stop_one), (2, 20, INTERRUPT)]) as script,
        pytest.raises(KeyboardInterrupt),
    ):
        fit(job)
    assert script.done == 2
    assert audit(run_of(job)).clean
    assert any("no progress for" in note for note in notes(job))


@pytest.mark.slow
def test_a_loop_of_the_users_own_goes_through_the_same_changes(cluster, tmp_path):
    """jobs/own_loop.py, 3 -> 2 by notice and to its end: nothing is done again, and the audit derives its samples."""
    jobs = Path(__file__).parents[2] / "jobs"
    settings = [
        "train.steps=120",
        "workers.max=3",
        f"data.path={jobs / 'own_loop.py'}",
        f"checkpoint.path={tmp_path / 'run'}",
        "checkpoint.every=1000",
    ]
    job = read_job(str(jobs / "own_loop.yaml"), settings)
    gone = []
    with Script(job, [(3, 20, lambda: gone.append(retire(cluster)))]) as script:
        fit(job)
    cluster.kill_node(gone[0])
    assert script.done == 1
    result = audit(run_of(job), code=job.data.path)
    assert result.clean, result.findings
    assert (result.steps, result.recomputed) == (120, 0)
    assert sizes(result) == [3, 2]
    before, after = result.held_out[0][1], result.held_out[-1][1]
    assert after < before / 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_is_flat_over_twenty_resizes(cluster, tmp_path):
    """2 -> 3 -> 2 ten times: the process that lives through all of them does not grow with each."""
    job = make_job(tmp_path, steps=100_000, most=3, every_steps=1000)
    resident = []

    def look():
        pids = workers_of(cluster)
        sizes_kib = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4 for pid in sorted(pids)]
        resident.append(sizes_kib[0] / 1024)

    def drain():
        look()
        drain_node(cluster.nodes()[-1], EVENT_S, "test")

    acts = [(3, 10, drain), (2, 10, cluster.add_node)] * 10

    with Script(job, [*acts, (3, 10, INTERRUPT)]) as script, pytest.raises(KeyboardInterrupt):
        fit(job)
    assert script.done == 21
    assert audit(run_of(job)).recomputed == 0
    # Without malloc_trim it grew by 100 MB a resize.
    assert resident[-1] - resident[2] < 60, resident
