"""The walk, end to end, without processes: job file -> plan -> train -> resize -> plan -> audit."""

import json

import pytest
import torch.distributed as dist

from planner.files import read_job
from planner.job import batch_sizes
from planner.plan import make_plan
from planner.provenance.audit import audit
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.generation import train
from planner.train.hooks import Hooks
from planner.train.setup import Launch
from planner.train.world import cpu_device

JOB = """
name: walk
model: {kind: gpt, layers: 1, width: 16, heads: 2, context: 16}
data: {kind: text, path: TEXT}
batch: {global: 6, max_micro: 4}
train:
  steps: 4
  optimizer: {kind: adamw, lr: 1e-3}
workers: {gpus: 0}
checkpoint: {path: RUN, every: 2}
"""


@pytest.fixture
def world_of_one(tmp_path):
    """A process group with this process alone in it."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world_of_one")
def test_the_walk(tmp_path):
    """A job is read, planned, trained, stopped, resumed and audited; the dry run's digest is the ledger's."""
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    file = tmp_path / "job.yaml"
    file.write_text(JOB.replace("TEXT", str(tmp_path / "text.txt")).replace("RUN", str(tmp_path / "run")))
    job = read_job(file)
    plan = make_plan(batch_sizes(job), 1)

    reported, asked = [], []

    def stop_after_two(_step):
        asked.append(None)
        return len(asked) > 2

    launch = Launch(job=job, url=job.run_path)
    first = train(launch, cpu_device, Hooks(report=reported.append, should_stop=stop_after_two))
    assert (first.step, first.finished) == (2, False)
    second = train(launch, cpu_device, Hooks(report=reported.append))
    assert (second.step, second.finished) == (4, True)
    assert reported[-1]["step"] == 3
    assert reported[-1]["samples"] == 6

    header = json.loads((tmp_path / "run" / "ledger" / "000001.jsonl").read_text().splitlines()[0])["record"]
    assert header["plan_digest"] == plan.digest
    result = audit(RunFolder(Storage(job.run_path)))
    assert result.clean, result.findings
    assert (result.steps, result.samples, result.recomputed) == (4, 24, 0)
