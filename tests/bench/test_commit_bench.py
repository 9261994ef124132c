"""`bench/commit.py`: a toy run of it, and which rows it counts as failures."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

GOOD = {
    "parameters_m": 3.0,
    "workers": 1,
    "storage": "local disk",
    "stall_s": 0.1,
    "bound_s": 0.11,
    "copied_mb": 36.0,
    "extra_mb": 40.0,
    "step_s": 0.1,
    "step_beside_s": 0.11,
}


@pytest.fixture
def bench(monkeypatch):
    """The module."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    return importlib.import_module("commit")


@pytest.mark.parametrize(
    ("changed", "num_missed"),
    [
        pytest.param({}, 0, id="all kept"),
        pytest.param({"stall_s": 0.115}, 1, id="stall"),
        pytest.param({"extra_mb": 53.0}, 1, id="memory"),
        pytest.param({"step_beside_s": 0.112}, 1, id="slower steps"),
        pytest.param({"step_beside_s": 0.2, "workers": 3}, 0, id="slower steps of workers that share cores"),
        pytest.param({"step_beside_s": None}, 0, id="a write shorter than a step"),
    ],
)
def test_a_bound_that_is_missed_is_named(bench, changed, num_missed):
    """Each bound by itself, just kept and just missed."""
    assert len(bench.missed([{**GOOD, **changed}])) == num_missed


def test_limited_storage_may_change_the_stall_by_a_fifth(bench):
    """Both ways: a stall that is much shorter was not measured alike."""
    assert not bench.missed([GOOD, {**GOOD, "stall_s": 0.085}])
    assert len(bench.missed([GOOD, {**GOOD, "stall_s": 0.075}])) == 1
    assert len(bench.missed([GOOD, {**GOOD, "stall_s": 0.13, "bound_s": 1.0}])) == 1


@pytest.mark.fsdp
def test_a_toy_run_measures_every_kind_of_storage(tmp_path):
    """Two rows with all figures, from real steps."""
    rows_file = tmp_path / "rows.json"
    command = [sys.executable, ROOT / "bench" / "commit.py", "--toy", "--folder", tmp_path]
    done = subprocess.run(
        command,
        env={**os.environ, "PLANNER_BENCH_ROWS": str(rows_file)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    local, limited = json.loads(rows_file.read_text())
    assert (local["storage"], limited["storage"]) == ("local disk", "local disk at 20 MB/s")
    for row in (local, limited):
        assert {"parameters_m", "workers", "state_mb", "copy_s"} <= row.keys()
        assert min(row[name] for name in ("stall_s", "first_stall_s", "stall_0_1_0_s", "step_s", "copied_mb")) > 0
    assert not [path for path in tmp_path.iterdir() if path != rows_file]
