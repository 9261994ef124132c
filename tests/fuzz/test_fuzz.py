"""A bounded fuzz of every reader, with a fixed seed; `make fuzz` goes on for an hour."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fuzz.py")
# Together they take less than a minute on two quiet cores; half of it is to import transformers and to make the inputs.
CASES = 45


@pytest.mark.timeout(600)
def test_every_input_is_read_or_refused_in_one_sentence():
    """What to type to see a failure again stands beside it."""
    command = [sys.executable, str(SCRIPT), "--seed", "1", "--cases", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    # Mutants of both kinds came by, so that both were judged.
    assert all(row["cases"] == CASES and row["read"] and row["refused"] for row in rows), rows
