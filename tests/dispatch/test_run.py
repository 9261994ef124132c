"""Jobs on a real Ray cluster: sizes, losses of nodes and workers, refusals."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from conftest import TEST_TIMINGS

from planner.audit import audit
from planner.dispatch import launch as dispatch
from planner.errors import RunError
from planner.job import Job
from planner.store.follow import Follower
from planner.store.records import GenerationRecord, StepRecord
from planner.store.run import Run
from planner.store.storage import Storage

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]


def make_job(tmp_path, *, steps, most, every_steps=5, **train):
    rows = tmp_path / "rows.jsonl"
    if not rows.exists():
        rows.write_text("".join(json.dumps({"text": f"{i} " + "abcdefghij " * (i % 7)}) + "\n" for i in range(300)))
    return Job.model_validate(
        {
            "name": "test",
            "model": {"kind": "gpt", "layers": 2, "width": 32, "heads": 2, "context": 64},
            "data": {"kind": "jsonl", "path": str(rows)},
            "batch": {"global": 13, "max_micro": 4},
            "train": {"steps": steps, "optimizer": {"kind": "adamw", "lr": 1e-3}, **train},
            "eval": {"samples": 5, "every_steps": 1000},
            "workers": {"min": 1, "max": most, "gpus": 0},
            "checkpoint": {"path": str(tmp_path / "run"), "every_steps": every_steps},
        }
    )


def fit(job, accept=()):
    launch = dispatch.new_launch(job, job.run_path, frozenset(accept))
    dispatch.fit(launch, TEST_TIMINGS, on_cpu=True)


def run_of(job):
    return Run(Storage(job.run_path))


def sizes(result):
    return [phase.world_size for phase in result.phases]


class When(threading.Thread):
    """Does something once the run has done so many steps at a world size. Fails the test if it never came to it."""

    def __init__(self, job, world_size, steps, act):
        super().__init__(daemon=True)
        self._follower = Follower(run_of(job), from_now=True)
        self._world_size, self._steps, self._act = world_size, steps, act
        self.done = False

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.join(timeout=5)

    def run(self):
        size = seen = 0
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for record in self._follower.new_records():
                if isinstance(record, GenerationRecord):
                    size, seen = record.world_size, 0
                seen += isinstance(record, StepRecord)
            if size == self._world_size and seen >= self._steps:
                self._act()
                self.done = True
                return
            time.sleep(0.1)


def ray_workers():
    """Process ids of Ray Train workers below this machine's embedded clusters."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if b"RayTrainWorker" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_job_runs_at_one_size_and_resumes_at_another(cluster, tmp_path):
    """Two workers, then three by the same folder with more steps; clean, nothing done twice."""
    fit(make_job(tmp_path, steps=6, most=2))
    fit(make_job(tmp_path, steps=10, most=3))
    result = audit(run_of(make_job(tmp_path, steps=10, most=3)))
    assert result.clean, result.findings
    assert (result.steps, result.recomputed, sizes(result)) == (10, 0, [2, 3])


def test_a_lost_node_and_a_new_one(cluster, tmp_path):
    """3 workers, a node killed, 2 workers, a node added, 3 workers: every step exact, the rest counted as again."""
    job = make_job(tmp_path, steps=400, most=3, every_steps=10)
    with When(job, 3, 15, cluster.kill_node) as lost, When(job, 2, 10, cluster.add_node) as gained:
        fit(job)
    assert lost.done
    assert gained.done
    result = audit(run_of(job))
    assert result.clean, result.findings
    assert result.steps == 400
    assert sizes(result) == [3, 2, 3]
    assert result.recomputed > 0


def test_a_killed_worker_costs_the_steps_since_the_last_commit(cluster, tmp_path):
    """SIGKILL of one worker process restarts the group; no step is lost or repeated."""
    job = make_job(tmp_path, steps=40, most=2, every_steps=8)

    def kill_one():
        os.kill(ray_workers()[0], signal.SIGKILL)

    with When(job, 2, 12, kill_one) as killed:
        fit(job)
    assert killed.done
    result = audit(run_of(job))
    assert result.clean, result.findings
    assert result.steps == 40
    assert len(result.phases) >= 2


def test_a_refusal_reaches_the_driver_in_its_own_words(cluster, tmp_path):
    """A changed seed is refused by the workers, once: Ray does not try again and again."""
    fit(make_job(tmp_path, steps=2, most=2))
    generations = run_of(make_job(tmp_path, steps=2, most=2)).generations()
    with pytest.raises(RunError, match="the run was made with seed 0, the job says 1; .* --accept seed"):
        fit(make_job(tmp_path, steps=4, most=2, seed=1))
    assert run_of(make_job(tmp_path, steps=2, most=2)).generations() == generations


def test_never_more_workers_than_samples(cluster, tmp_path):
    """A global batch of 2 on three nodes runs on two workers."""
    job = make_job(tmp_path, steps=2, most=3)
    job = job.model_copy(update={"batch": job.batch.model_copy(update={"global_batch": 2})})
    fit(job)
    assert sizes(audit(run_of(job))) == [2]


def test_the_private_key_value_store_works_as_expected(cluster):
    """The contract of `dispatch.private`: a word left in any process of the cluster is read in the driver."""
    import ray

    from planner.dispatch.private import get_word, put_word

    @ray.remote(num_cpus=0)
    def leave():
        put_word("test-key", "a word — with ünicode")

    assert get_word("test-key") == ""
    ray.get(leave.remote(), timeout=60)
    assert get_word("test-key") == "a word — with ünicode"
