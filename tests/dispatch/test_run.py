"""Jobs on a real Ray cluster: sizes, losses of nodes and workers, refusals."""

import os
import signal

import pytest
from live_runs import Script, fit, make_job, run_of, workers_of

from planner.errors import RunError
from planner.provenance.audit import audit

pytestmark = pytest.mark.ray


def sizes(result):
    return [phase.world_size for phase in result.phases]


@pytest.mark.slow  # CI has it by `planner run`, in test_command_line.py
@pytest.mark.usefixtures("cluster")
def test_a_job_runs_at_one_size_and_resumes_at_another(tmp_path):
    """Two workers, then three by the same folder with more steps; clean, nothing done twice."""
    fit(make_job(tmp_path, steps=6, most=2))
    fit(make_job(tmp_path, steps=10, most=3))
    result = audit(run_of(make_job(tmp_path, steps=10, most=3)))
    assert result.clean, result.findings
    assert (result.steps, result.recomputed, sizes(result)) == (10, 0, [2, 3])


@pytest.mark.slow  # `make faults` has it, and storms
def test_a_lost_node_and_a_new_one(cluster, tmp_path):
    """3 workers, a node killed, 2 workers, a node added, 3 workers: every step exact, the rest counted as again."""
    job = make_job(tmp_path, steps=260, most=3, every_steps=10)
    with Script(job, [(3, 15, cluster.kill_node), (2, 10, cluster.add_node)]) as script:
        fit(job)
    assert script.done == 2
    result = audit(run_of(job))
    assert result.clean, result.findings
    assert result.steps == 260
    assert sizes(result) == [3, 2, 3]
    assert result.recomputed > 0


@pytest.mark.slow  # `make faults` has it, and storms
def test_a_killed_worker_costs_the_steps_since_the_last_commit(cluster, tmp_path):
    """SIGKILL of one worker process restarts the group; no step is lost or repeated."""
    job = make_job(tmp_path, steps=40, most=2, every_steps=8)

    def kill_one():
        os.kill(workers_of(cluster)[0], signal.SIGKILL)

    with Script(job, [(2, 12, kill_one)]) as script:
        fit(job)
    assert script.done == 1
    result = audit(run_of(job))
    assert result.clean, result.findings
    assert result.steps == 40
    assert len(result.phases) >= 2


@pytest.mark.slow  # CI has it by `planner submit`, in test_submit.py
def test_a_refusal_reaches_the_driver_unchanged(resized):
    """A changed seed is refused by the workers, once: Ray does not try again and again."""
    run = run_of(resized.job)
    generations = run.generations()
    with pytest.raises(RunError, match=r"the run was made with another seed \(train.seed: 0 -> 1\). .* --accept seed"):
        fit(make_job(resized.folder, steps=resized.job.train.steps, most=1, seed=1))
    assert run.generations() == generations


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_never_more_workers_than_samples(tmp_path):
    """A global batch of 2 on three nodes runs on two workers."""
    job = make_job(tmp_path, steps=2, most=3)
    job = job.model_copy(update={"batch": job.batch.model_copy(update={"global_batch": 2})})
    fit(job)
    assert sizes(audit(run_of(job))) == [2]
