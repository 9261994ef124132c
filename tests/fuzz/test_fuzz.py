"""A bounded fuzz of every reader, with a fixed seed; `make fuzz` goes on for an hour."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import fuzz
import fuzz_readers
import pytest
from events import EVENT_S

from planner.errors import PlannerError

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).with_name("fuzz.py")
# Of each reader. Most of the time is to import transformers and to make the inputs. `make fuzz` goes on for an hour.
CASES = 6


def test_every_input_is_read_or_refused_in_one_sentence():
    """What to type to see a failure again stands beside it."""
    command = [sys.executable, str(SCRIPT), "--seed", "1", "--cases", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(rows) == len(fuzz_readers.READERS)
    assert all(row["cases"] == CASES for row in rows), rows
    # Mutants of both kinds came by, so that both were judged.
    assert min(sum(row[kind] for row in rows) for kind in ("read", "refused")) > len(rows), rows


def _hang() -> None:
    while True:
        time.sleep(0.01)


def _compute() -> None:
    while True:
        pass


def _say(text: str) -> None:
    os.write(1, text.encode())  # pytest has sys.stdout


def _refuse(text: str) -> None:
    raise PlannerError(text)


FAULTS = {
    "a traceback": lambda: {}["k"],
    "a traceback that is printed": lambda: _say("Traceback (most recent call last):\n"),
    "an exit": lambda: sys.exit(0),
    "an end by a signal": lambda: os.kill(os.getpid(), 9),
    "a hang": _hang,
    "an endless computation": _compute,
    "a memory hog": lambda: bytearray(os.urandom(2**20)) * 200,
    "an escape code": lambda: _say("\x1b[31m"),
    "an escape code of the upper half": lambda: _say("\x9b31m"),
    "a carriage return": lambda: _say("a\rb"),
    "a long message": lambda: _refuse("a" * 501),
}


def _planted(act, monkeypatch, tmp_path) -> fuzz.Outcome:
    monkeypatch.setitem(fuzz_readers.READERS, "planted", lambda _folder: act())
    monkeypatch.setattr(fuzz, "SECONDS", 1)
    monkeypatch.setattr(fuzz, "HANG_S", 1 if act is _hang else EVENT_S)
    monkeypatch.setattr(fuzz, "MEMORY_BYTES", 100 * 2**20)
    (tmp_path / "valid" / "planted" / "one").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    return fuzz.attempt(fuzz.Case(1, "planted", 0), tmp_path / "valid", tmp_path / "work")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, monkeypatch, tmp_path):
    """Each of what the fuzz asserts can fail."""
    assert _planted(FAULTS[fault], monkeypatch, tmp_path).kind == "failed"


def test_a_right_answer_is_no_failure(monkeypatch, tmp_path):
    outcome = _planted(lambda: _say("a\tb"), monkeypatch, tmp_path)
    assert outcome.kind == "read", outcome.text
