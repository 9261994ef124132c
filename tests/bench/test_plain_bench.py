"""`bench/_plain.py`: the seconds of steps that benches on a GPU read are those of steps that nobody observes."""

import sys
from pathlib import Path

import pytest

from planner.job import Job
from planner.rehearsal.local_workers import LocalWorkers
from planner.rehearsal.observe import OBSERVED
from planner.train.setup import Launch

STEPS = 3


@pytest.mark.process
def test_plain_training_leaves_steps_and_neither_observations_nor_a_commit(monkeypatch, tmp_path):
    """The ledger has as many steps as were asked for."""
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "bench"), *sys.path])
    from _plain import records_of, train_plainly

    (tmp_path / "text").write_text("to be trained on " * 99)
    job = Job.model_validate(
        {
            "name": "plain",
            "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 8},
            "data": {"kind": "text", "path": str(tmp_path / "text")},
            "batch": {"global": 4, "max_micro": 2},
            "train": {"steps": STEPS + 1, "optimizer": {"kind": "sgd", "lr": 0.1}},
            "workers": {"gpus": 0},
        }
    )
    run = tmp_path / "run"
    with LocalWorkers(1) as workers:
        workers.run(train_plainly, 1, Launch(job=job, url=str(run)), STEPS, "cpu")
    steps = records_of(run, "step")
    assert [step["step"] for step in steps] == list(range(STEPS))
    assert all(step["seconds"] > 0 for step in steps)
    assert not records_of(run, "commit")
    assert not (run / OBSERVED).exists()
