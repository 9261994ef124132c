"""`bench/start.py`: its phases follow from the workers' marks, and a toy run has all of them."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch):
    """Imports a module of the bench."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    return importlib.import_module


def test_a_phase_ends_with_the_last_worker(bench):
    """Worker 1 is the last everywhere, by a second."""
    marks = bench("_start_worker").MARKS
    lines = [{"kind": mark, "at_s": 100.0 + 3 * n + rank} for n, mark in enumerate(marks) for rank in (1, 0)]
    found = bench("start").phases(lines, 99.0)
    assert list(found) == list(marks)
    assert list(found.values()) == [2.0] + [3.0] * (len(marks) - 1)


@pytest.mark.fsdp
@pytest.mark.slow
def test_a_toy_run_has_all_phases():
    """Three workers, whose second group is made, connected later, or the first one."""
    command = [sys.executable, ROOT / "bench" / "start.py", "--workers", "3", "--repeats", "1", "--dry"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [ast.literal_eval(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row["groups"] for row in rows] == ["two", "lazy", "one"]
    for row in rows:
        assert row["seconds_to_first_step"] > 0
        assert min(row["phases_s"].values()) >= 0
