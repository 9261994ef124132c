"""Rows that are tokenized on demand in real FSDP processes: the bits of rows that are tokenized ahead."""

import json
from pathlib import Path

import pytest
from sample_sets import write_rows
from test_bitwise import result
from worker_functions import make_job, records, run_job

from planner.data import lazy_sets
from planner.errors import DataError, ResumeRefused
from planner.provenance.audit import audit
from planner.provenance.identity import open_data
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = pytest.mark.fsdp

STEPS = 4
OBJECTIVES = {"chat": {"kind": "sft"}, "pairs": {"kind": "dpo"}, "feedback": {"kind": "kto"}}


def job(folder, kind, tokenize, *, loader_processes=0, rows=24):
    if not (path := folder / f"{kind}.jsonl").exists():
        write_rows(path, kind, num_rows=rows)
    return make_job(
        "",
        steps=STEPS,
        global_batch=7,
        max_micro=2,
        objective=OBJECTIVES[kind],
        eval={"samples": 4, "every": 2},
        # 20 rows to train on: the last step is in the second epoch.
        data={"kind": kind, "path": str(path), "tokenize": tokenize},
        batch={"equality": "bitwise"},
        train={"optimizer": {"kind": "sgd", "lr": 0.3}, "clip_norm": None},
        workers={"gpus": 0, "loader_processes": loader_processes},
    )


def findings(url):
    return audit(RunFolder(Storage(str(url)))).findings


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k != "pairs")) for k in OBJECTIVES])
def test_weights_are_those_of_rows_tokenized_ahead(workers, tmp_path, kind):
    """At 1, 2 and 3 workers, and through 3 and 1, from loader processes: one set of bits. The audit is clean."""
    workers.run(run_job, 2, job(tmp_path, kind, "ahead"), str(tmp_path / "ahead"))
    expected = result(tmp_path / "ahead")
    for world_size in (1, 2, 3):
        url = tmp_path / str(world_size)
        workers.run(run_job, world_size, job(tmp_path, kind, "on_demand"), str(url))
        assert result(url) == expected
        assert not findings(url)
    resized, loaded = tmp_path / "resized", job(tmp_path, kind, "on_demand", loader_processes=1)
    workers.run(run_job, 3, loaded, str(resized), 2)
    workers.run(run_job, 1, loaded, str(resized))
    assert result(resized) == expected
    assert not findings(resized)


def test_a_run_changes_the_way_only_if_it_is_accepted(workers, tmp_path):
    """It would not be known before the first step that the samples are the same. Then they are, and audits agree."""
    workers.run(run_job, 2, job(tmp_path, "pairs", "ahead"), str(tmp_path / "whole"))
    moved = tmp_path / "moved"
    workers.run(run_job, 2, job(tmp_path, "pairs", "ahead"), str(moved), 2)
    on_demand = job(tmp_path, "pairs", "on_demand")
    with pytest.raises(ResumeRefused, match=r"data\.tokenize"):
        workers.run(run_job, 2, on_demand, str(moved))
    workers.run(run_job, 3, on_demand, str(moved), None, ("data",))
    assert result(moved) == result(tmp_path / "whole")
    assert not findings(moved)


def run_untried(rank, *arguments):
    """One generation that tries only the first row when it opens the data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lazy_sets, "_TRIED", 1)
        patch.setattr(lazy_sets, "_LEAST_TRIED", 1)
        return run_job(rank, *arguments)


def test_all_workers_stop_before_a_step_with_a_bad_row(workers, tmp_path):
    """They commit the steps before it and raise one error, which names the row."""
    sound = job(tmp_path, "pairs", "on_demand")
    lines = Path(sound.data.path).read_text().splitlines()
    harmed = _row_of_step(sound, 2)
    lines[harmed] = json.dumps({"prompt": "a", "chosen": "b", "rejected": "b"})
    Path(sound.data.path).write_text("\n".join(lines))
    url = tmp_path / "harmed"
    with pytest.raises(DataError, match=rf"pairs.jsonl:{harmed + 1} cannot be used: chosen and rejected are the same"):
        workers.run(run_untried, 2, sound, str(url))
    assert [record["step"] for record in records(url)] == [0, 1]
    assert [record["step"] for record in records(url, "commit")][-1] == 2


def _row_of_step(sound, step):
    """A row of the first epoch that this step uses. Opening the data does not try it."""
    _, order = open_data(sound)
    return max(order.rows(7 * step, 7 * step + 6).tolist())
