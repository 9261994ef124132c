"""A mixture of five sets, trained by real processes at several counts of workers."""

import pytest
from hub_layout import write_sets
from worker_functions import make_job, records

from planner.provenance.audit import audit
from planner.provenance.identity import open_data
from planner.rehearsal.on_processes import rehearse, train_observed
from planner.rehearsal.stages import stages
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.setup import Launch

pytestmark = pytest.mark.fsdp

WEIGHTS = {"alpha": 3.0, "beta": 1.0, "gamma": 4.5, "delta": 0.25, "epsilon": 2.0}
STEPS, BATCH = 16, 23


def test_a_history_of_counts_trains_on_the_same_samples(workers, tmp_path):
    """Counts per set and epoch are exact to one sample, the audit is clean, and evaluation uses rows of every set."""
    sets = write_sets(tmp_path / "sets")
    mixed = [{"path": sets[name], "config": "SFT", "split": "train", "weight": w} for name, w in WEIGHTS.items()]
    job = make_job(
        "",
        steps=STEPS,
        global_batch=BATCH,
        max_micro=2,
        model={"context": 96},
        objective={"kind": "sft"},
        data={"kind": "chat", "mixture": mixed},
        eval={"samples": 20, "every": 8},
    )
    folders = tmp_path / "fixed", tmp_path / "history"
    for folder, sizes in zip(folders, ([2], [4, 3, 1]), strict=True):
        rehearse(workers, Launch(job=job, url=str(folder)), stages(sizes, STEPS), train_observed)
        found = audit(RunFolder(Storage(str(folder))))
        assert found.clean, found.findings
    here, there = ([(s["step"], s["checksum"]) for s in records(str(folder))] for folder in folders)
    assert here == there
    assert len({checksum for _, checksum in here}) == STEPS
    losses, others = ([e["loss"] for e in records(str(folder), "eval")] for folder in folders)
    assert losses == pytest.approx(others, rel=1e-4)
    assert len(losses) == 1 + STEPS // 8

    dataset, order = open_data(job)
    used = [each.num_rows for each in dataset.sets]
    total, whole = sum(used), sum(WEIGHTS.values())
    assert all(abs(count - total * w / whole) < 1 for count, w in zip(used, WEIGHTS.values(), strict=True))
    assert min(order.set_held_out) >= 0
    assert sum(order.set_held_out) == 20
    assert order.num_samples < STEPS * BATCH  # the run is longer than an epoch
