"""`jobs/trl_loop.yaml`: TRL's data and loss in planner's loop, which `planner submit` sends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="trl is not installed: pip install '.[trl]'")

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROJECT = Path(__file__).parents[2]


def test_the_job_trains_the_same_through_three_and_then_two_workers():
    """By `planner verify`, which compares samples, losses and weights."""
    command = [sys.executable, "-m", "planner.cli", "verify", "jobs/trl_loop.yaml", "--history", "3,2", "--steps", "4"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "samples           equal at 4 steps" in done.stdout
