"""`bench/gpu.py`: its pieces at toy sizes, so that what runs on a GPU once a month is not broken when it does."""

import importlib.util
import json
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
import _gpu_sums, _gpu_optimizers, _gpu_collectives, gpu
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
    piece = gpu.PIECES[0]
    assert not gpu.is_done(piece, FACTS, [tmp_path])
    (tmp_path / f"gpu-{piece.name}.json").write_text(json.dumps({**FACTS, "passed": True, **changed}))
    assert gpu.is_done(piece, FACTS, [tmp_path]) == expected


@pytest.mark.process
def test_what_fails_is_kept_and_named(gpu, monkeypatch, tmp_path):
    """A hash that differs is the most telling result of all: its rows are written, and it is run again next time."""
    script = tmp_path / "fails.py"
    script.write_text("import json, os\nopen(os.environ['PLANNER_BENCH_ROWS'], 'w').write('[{}]')\nraise SystemExit(3)")
    piece = gpu.Piece(name="fails", what="fails", script=str(script), needs=("sys",))
    lacking = gpu.Piece(name="lacks", what="lacks", script=str(script), needs=("no_such_package",))
    monkeypatch.setattr(gpu, "PIECES", (piece, lacking))
    monkeypatch.setattr(gpu, "probe", lambda: {name: FACTS[name] for name in ("gpus", "torch", "cuda", "driver")})
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path / "out")])
    assert gpu.main() == 1
    (file,) = (tmp_path / "out").iterdir()
    result = json.loads(file.read_text())
    assert (result["passed"], result["rows"], result["gpus"]) == (False, [{}], FACTS["gpus"])
    assert not gpu.is_done(piece, {**FACTS, "code": result["code"]}, [tmp_path / "out"])


@pytest.mark.process
def test_a_piece_that_takes_too_long_is_ended(gpu, tmp_path):
    """With the processes that it started."""
    script = tmp_path / "long.py"
    script.write_text("import time\ntime.sleep(1000)")
    piece = gpu.Piece(name="long", what="long", script=str(script), needs=())
    passed, rows, _ = gpu.run(piece, "cpu", toy=False, limit_s=0.5)
    assert (passed, rows) == (False, [])


def test_the_docs_say_what_was_not_measured(gpu):
    """A row of docs/gpu.md says "not measured" until its result is there, and no longer."""
    lines = (ROOT / "docs" / "gpu.md").read_text().splitlines()
    for piece in gpu.PIECES:
        (row,) = [line for line in lines if line.startswith(f"| `{piece.name}` |")]
        has_result = (ROOT / "bench" / "results" / f"gpu-{piece.name}.json").exists()
        assert row.endswith("| not measured |") != has_result
