"""A bounded fuzz of every reader, with a fixed seed; `make fuzz` goes on for an hour."""

import contextlib
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import fuzz
import fuzz_pickles
import fuzz_readers
import fuzz_seals
import pytest
from events import EVENT_S
from made_up_runs import make_history
from verifiers import audited, run_script

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
    assert all(row["cases"] == -(-CASES // fuzz_readers.SLOW.get(row["reader"], 1)) for row in rows), rows
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


@pytest.fixture
def history(tmp_path, monkeypatch):
    """A run with several generations and held steps. Its data is beside it."""
    make_history(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _ledgers(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted((folder / "run" / "ledger").iterdir())]


def test_resealing_without_a_change_leaves_a_clean_run(history):
    """The chain is the same to the last byte, and both verifiers call the run clean."""
    before = _ledgers(history)
    fuzz_seals.reseal(history / "run")
    assert _ledgers(history) == before
    assert audited(history / "run").findings == ()
    code, output = run_script(history / "run")
    assert code == 0, output


def test_a_change_of_what_nobody_can_check_leaves_a_clean_run(history):
    """Losses and the versions in manifests are taken on trust. Every digest behind them has followed."""
    before = _ledgers(history)
    opened = fuzz_seals.Opened(history / "run")
    for tree in opened.trees:
        if tree.get("kind") == "step":
            tree["loss"] = 1.25
        if "versions" in tree:
            tree["versions"] = {"planner": "another"}
    opened.close()
    assert all(one != two for one, two in zip(before, _ledgers(history), strict=True))
    assert audited(history / "run").findings == ()
    code, output = run_script(history / "run")
    assert code == 0, output


@pytest.mark.parametrize("kind", ["ledger", "job", "sizes", "shards", "everywhere"])
def test_no_seal_refuses_a_change_behind_the_seals(kind, history, tmp_path_factory):
    """Readers may find it wrong by what it says, and not because a digest does not match."""
    for number in range(6):
        folder = tmp_path_factory.mktemp("case") / "case"
        shutil.copytree(history, folder)
        fuzz_seals.change_behind_seals(folder, random.Random(number), [kind])
        with contextlib.chdir(folder):
            _, output = run_script(folder / "run")
        assert not fuzz.SEALED_OFF.search(output), output


def test_the_verifiers_words_for_a_broken_seal_are_known(history):
    """Otherwise each case would count as one behind the seals."""
    file = history / "run" / "ledger" / "000001.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"loss":5.0', b'"loss":4.0', 1))
    _, output = run_script(history / "run")
    assert fuzz.SEALED_OFF.search(output)
    assert any(fuzz.SEALED_OFF.search(found) for found in audited(history / "run").findings)


def test_a_pickle_in_pieces_is_the_same_pickle():
    """Memos have their numbers, and there are no frames."""
    value = {"a": [1, 2**40, "x" * 300], "b": ("a", "x" * 300), "c": [{"k": number} for number in range(300)]}
    pieces = fuzz_pickles.pieces_of(pickle.dumps(value, protocol=4))
    assert pickle.loads(b"".join(piece for _, _, piece in pieces)) == value
