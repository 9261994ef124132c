"""A run with all five trackers on a local Ray cluster that loses two nodes and its driver."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from events import ended, wait_for
from readers import KINDS, offline, series, trackers

from planner.local_cluster.embedded import EmbeddedCluster
from planner.local_cluster.environment import driver_environment
from planner.provenance.lineage import whole_lineage
from planner.store.commit_names import commit_of
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = [pytest.mark.ray, pytest.mark.slow]

JOB = """
name: tracked
model: {kind: gpt, layers: 1, width: 32, heads: 2, context: 64}
data: {kind: jsonl, path: rows.jsonl}
batch: {global: 12, max_micro: 3}
train:
  steps: 100000
  optimizer: {kind: adamw, lr: 1e-3}
eval: {samples: 5, every: 20}
workers: {max: 3, gpus: 0}
checkpoint: {path: run, every: 7}
"""


@pytest.fixture
def folder(tmp_path):
    """A working directory with a job and its data."""
    (tmp_path / "job.yaml").write_text(JOB + f"tracking: {json.dumps(trackers(tmp_path / 'run'))}\n")
    rows = [json.dumps({"text": f"row {i} " * (i % 9)}) for i in range(100)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path


def start(folder, *arguments):
    package = {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        [sys.executable, "-m", "planner.cli", *arguments],
        cwd=folder,
        env={**offline(folder / "run"), **driver_environment(), **package},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_commit(run, generation, driver):
    """Until a generation later than that has committed. The driver must not end before."""
    wait_for(lambda: any(commit_of(name)[1] > generation for name in run.commits()) or driver.poll() is not None)
    assert driver.poll() is None, driver.communicate()


def test_every_tracker_has_the_lineage(folder):
    """Two nodes and the driver are killed. Each tracker's steps rise strictly and are the audit's."""
    run = RunFolder(Storage(str(folder / "run")))
    with EmbeddedCluster(num_nodes=3) as cluster:
        driver = start(folder, "run", "job.yaml", "--address", cluster.address)
        wait_for_commit(run, 0, driver)
        for _ in range(2):
            generation = run.newest_generation()
            cluster.kill_node()
            wait_for_commit(run, generation, driver)
        generation = run.newest_generation()
        os.kill(driver.pid, signal.SIGKILL)
        driver.communicate()
        committed = run.manifest(run.commits()[-1]).step
        driver = start(
            folder, "run", "job.yaml", "--address", cluster.address, "--set", f"train.steps={committed + 20}"
        )
        code, said, _ = ended(driver)
        assert code == 0, said
    lineage = whole_lineage(run)
    assert len({segment.header.generation for segment in lineage.segments}) >= 3
    steps = [(record.step + 1, record.loss) for record in lineage.steps]
    evaluations = [(record.step, record.loss) for record in lineage.evals]
    for kind in KINDS:
        found = series(kind, folder / "run")
        assert [step for step, _ in found["train/loss"]] == [step for step, _ in steps], (kind, said)
        assert [loss for _, loss in found["train/loss"]] == pytest.approx([loss for _, loss in steps]), kind
        assert {step for step, _ in found["eval/loss"]} <= {step for step, _ in evaluations}, kind
        assert [step for step, _ in found["eval/loss"]] == sorted({step for step, _ in found["eval/loss"]}), kind
        worlds = [world_size for _, world_size in found["batch/world_size"]]
        assert (worlds[0], worlds[-1]) == (3, 1), kind
    code, out, _ = ended(start(folder, "audit", "run"))
    assert code == 0, out
