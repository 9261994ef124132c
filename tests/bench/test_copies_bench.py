"""`bench/copies.py`: its figures follow from the workers' lines, and a toy run loses and resumes for real."""

import importlib
import os
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


def test_blocks_take_turns_until_the_kill(bench):
    """Two rounds of two steps without copies and two with them."""
    script = bench("_copies_worker").Script(rounds=2, block_steps=2, log="")
    phases = [script.phase(step) for step in range(10)]
    assert phases == ["off", "off", "on", "on", "off", "off", "on", "on", "kill", "kill"]


def test_figures_of_a_generation(bench):
    """A step takes 1.0 s, 1.2 s with copies. Of each copy the slower worker counts, and only those of the blocks."""
    seconds = {"off": 1.0, "on": 1.2, "kill": 9.0}
    phases = ["off"] * 4 + ["on"] * 4 + ["kill"] * 2
    lines = [
        {"kind": "step", "rank": 0, "step": 30 + n, "seconds": seconds[phase], "phase": phase, "interval": 2}
        for n, phase in enumerate(phases)
    ]
    for step, slow, slower in ((33, 5.0, 5.0), (34, 0.1, 0.2), (36, 0.4, 0.3)):
        lines += [{"kind": "copy", "rank": rank, "step": step, "seconds": s} for rank, s in enumerate((slow, slower))]
    found = bench("copies").measured(lines, 37)
    expected = {
        "step_s": 1.0,
        "step_overhead": 0.2,
        "copy_s": 0.3,
        "copies": 2,
        "copies_share": 0.6 / 4.8,
        "chosen": 2,
        "steps_lost": 3,
    }
    assert found == pytest.approx(expected)


@pytest.mark.fsdp
@pytest.mark.slow
def test_a_toy_run_shows_each_interval(tmp_path):
    """Two generations are killed, and each is resumed from the other node's memory: few steps are lost."""
    command = [sys.executable, ROOT / "bench" / "copies.py", "--toy", "--intervals", "2", "auto"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[0] in ("2", "auto") and "ms" in line]
    assert [row[0] for row in rows] == ["2", "auto"]
    # A worker resumes at most two steps behind the copy before the last one.
    assert 0 <= float(rows[0][-2]) <= 6
