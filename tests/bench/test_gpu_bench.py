"""`bench/gpu.py`: its pieces at toy sizes, so that what runs on a GPU once a month is not broken when it does."""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpu(monkeypatch):
    """The module."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    spec = importlib.util.spec_from_file_location("gpu", ROOT / "bench" / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu", module)
    spec.loader.exec_module(module)
    return module


# `make gpu-smoke` runs them all. CI has no time for the long ones.
@pytest.mark.fsdp
@pytest.mark.parametrize(
    "piece",
    [
        *(
            pytest.param(piece, marks=pytest.mark.slow)
            for piece in (
                "sums",
                "optimizers",
                "collectives",
                "resize",
                "compiled",
                "commit",
                "large",
                "hf",
                "dpo",
                "ray",
                "packed",
                "packed_training",
                "memory",
                "step",
                "loss",
            )
        ),
        "bitwise",
    ],
)
def test_a_piece_runs_at_toy_size_and_writes_nothing(piece, tmp_path):
    """On the CPU, over gloo; a piece that fails is an exit code."""
    command = [sys.executable, ROOT / "bench" / "gpu.py", "--toy", piece, "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{piece}: passed" in done.stdout
    assert not list(tmp_path.iterdir())


def test_all_pieces_are_known_to_the_test_above(gpu):
    """A new one is tried in CI, too."""
    tried = test_a_piece_runs_at_toy_size_and_writes_nothing.pytestmark
    (names,) = [mark.args[1] for mark in tried if mark.name == "parametrize"]
    assert {getattr(name, "values", (name,))[0] for name in names} == {piece.name for piece in gpu.PIECES}


@pytest.mark.process
def test_the_first_pieces_need_torch_alone():
    """They run where neither pydantic nor Ray is installed."""
    code = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pydantic", "ray", "typer", "rich", "yaml", "fsspec"}:
            raise ImportError(name)
sys.meta_path.insert(0, Nothing())
import _gpu_sums, _gpu_optimizers, _gpu_collectives, loss, packed, gpu
"""
    paths = f"{ROOT}:{ROOT / 'bench'}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


FACTS = {"code": "c", "gpus": ["NVIDIA H200"], "torch": "2.11.0", "cuda": "13.0", "driver": "580"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"passed": False}, False),
        ({"code": "d"}, False),
        ({"torch": "2.13.0"}, False),
        ({"gpus": ["NVIDIA H100"]}, False),
        ({"driver": "570"}, False),
        ({"commit": "another", "seconds": 1.0}, True),
    ],
)
def test_a_result_counts_for_the_code_and_the_machine_it_was_made_with(gpu, tmp_path, changed, expected):
    """And only if the piece passed."""
    piece, other = gpu.PIECES[:2]
    assert not gpu.is_done(piece, FACTS, [tmp_path])
    gpu.keep(piece, {**FACTS, "passed": True, **changed}, [tmp_path])
    assert gpu.is_done(piece, FACTS, [tmp_path]) == expected
    assert not gpu.is_done(other, FACTS, [tmp_path])


def test_a_file_of_results_has_those_of_earlier_calls(gpu, tmp_path):
    """So it can replace theirs. Of one piece the result in the first folder counts."""
    first, second = tmp_path / "out", tmp_path / "results"
    for folder in (first, second):
        folder.mkdir()
    one, two, three = gpu.PIECES[:3]
    gpu.keep(one, {"of": "before"}, [second])
    gpu.keep(two, {"of": "before"}, [second])
    gpu.keep(two, {"of": "now"}, [first, second])
    gpu.keep(three, {"of": "now"}, [first, second])
    assert [file.name for file in first.iterdir()] == [gpu.FILE]
    assert json.loads((first / gpu.FILE).read_text()) == {
        one.name: {"of": "before"},
        two.name: {"of": "now"},
        three.name: {"of": "now"},
    }
    assert gpu.results_in([first, second])[two.name] == {"of": "now"}


def test_the_first_pieces_fit_into_one_call(gpu):
    """docs/gpu.md promises a first figure for each question in ten minutes, and has the sum of their seconds."""
    names = [piece.name for piece in gpu.PIECES[:8]]
    assert {"loss", "sums", "compiled", "commit", "resize", "dpo", "packed"} <= set(names)
    seconds = sum(piece.seconds for piece in gpu.PIECES[:8])
    assert seconds <= 10 * 60
    assert f"the first eight take ten minutes on an H100 ({seconds} s)" in (ROOT / "docs" / "gpu.md").read_text()


def test_the_docs_have_the_seconds_of_each_piece(gpu):
    """The second column of the table in docs/gpu.md, in the order of the pieces."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", (ROOT / "docs" / "gpu.md").read_text(), flags=re.MULTILINE)
    assert rows == [(piece.name, str(piece.seconds)) for piece in gpu.PIECES]


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [(3.0, ["short", "long"]), (1.5, ["short"]), (0.5, []), (24 * 60.0, ["short", "long"])],
)
def test_a_piece_is_begun_if_there_is_time_for_it(gpu, monkeypatch, capsys, tmp_path, minutes, expected):
    """What takes longer than what is left waits for another call. Shorter ones behind it run."""
    pieces = (
        gpu.Piece(name="long", what="long", script="x.py", needs=(), seconds=170),
        gpu.Piece(name="short", what="short", script="x.py", needs=(), seconds=60),
    )
    begun = []
    monkeypatch.setattr(gpu, "PIECES", pieces)
    monkeypatch.setattr(gpu, "run_and_keep", lambda piece, *_: begun.append(piece.name) or True)
    options = argparse.Namespace(pieces=[], toy=True, again=False, out=tmp_path, minutes=minutes)
    assert gpu.run_all(FACTS, options) == []
    assert sorted(begun) == sorted(expected)
    assert ("left for another call" in capsys.readouterr().out) == (len(expected) < len(pieces))


@pytest.mark.process
def test_what_fails_is_kept_and_named(gpu, monkeypatch, tmp_path):
    """A hash that differs is the most telling result of all: its rows are written, and it is run again next time."""
    script = tmp_path / "fails.py"
    script.write_text("import json, os\nopen(os.environ['PLANNER_BENCH_ROWS'], 'w').write('[{}]')\nraise SystemExit(3)")
    piece = gpu.Piece(name="fails", what="fails", script=str(script), needs=("sys",), seconds=1)
    lacking = gpu.Piece(name="lacks", what="lacks", script=str(script), needs=("no_such_package",), seconds=1)
    monkeypatch.setattr(gpu, "PIECES", (piece, lacking))
    monkeypatch.setattr(gpu, "probe", lambda: {name: FACTS[name] for name in ("gpus", "torch", "cuda", "driver")})
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path / "out")])
    assert gpu.main() == 1
    (file,) = (tmp_path / "out").iterdir()
    result = json.loads(file.read_text())["fails"]
    assert (result["passed"], result["rows"], result["gpus"]) == (False, [{}], FACTS["gpus"])
    assert not gpu.is_done(piece, {**FACTS, "code": result["code"]}, [tmp_path / "out"])


@pytest.mark.process
def test_a_piece_that_takes_too_long_is_ended(gpu, monkeypatch, tmp_path):
    """It keeps the rows that it has. Those of an earlier call that was ended are not its own."""
    script, rows_file, written = tmp_path / "long.py", tmp_path / "rows.json", tmp_path / "written"
    piece = gpu.Piece(name="long", what="long", script=str(script), needs=(), seconds=1)
    os.mkfifo(written)
    ends = f"open({str(written)!r}, 'w').close(); import time; time.sleep(1000)"
    usual = subprocess.Popen.wait

    def wait(process, timeout=None):
        if timeout is None:
            return usual(process)
        written.open().close()  # blocks until the piece has written what it has
        raise subprocess.TimeoutExpired("", timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    script.write_text(f"import os; open(os.environ['PLANNER_BENCH_ROWS'], 'w').write('[{{}}]'); {ends}")
    assert gpu.run(piece, "cpu", rows_file, toy=False, limit_s=9.0)[:2] == (False, [{}])
    rows_file.write_text('[{"of": "an earlier call"}]')
    script.write_text(ends)
    assert gpu.run(piece, "cpu", rows_file, toy=False, limit_s=9.0)[:2] == (False, [])


def test_the_docs_say_what_was_not_measured(gpu):
    """A row of docs/gpu.md says "not measured" until its result is there, and no longer."""
    lines = (ROOT / "docs" / "gpu.md").read_text().splitlines()
    results = gpu.results_in([ROOT / "bench" / "results"])
    for piece in gpu.PIECES:
        (row,) = [line for line in lines if line.startswith(f"| `{piece.name}` |")]
        assert row.endswith("| not measured |") != (piece.name in results)
