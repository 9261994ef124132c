"""What `make` says while it installs."""

import subprocess
import sys
from pathlib import Path

import pytest
import say_while
from events import wait_for

from planner.base import wait_reports

ROOT = Path(__file__).parents[2]


def test_what_takes_long_is_said_and_the_command_is_run(monkeypatch, capsys):
    """Before it, and again while it lasts. The exit code is the command's."""
    said = []

    def run(command, *, check):
        assert not check
        wait_for(lambda: said.append(capsys.readouterr().out) or "installing x (" in "".join(said))
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(wait_reports, "SILENCE_S", 0.0)
    monkeypatch.setattr(wait_reports, "_LOOK_S", 0.01)
    monkeypatch.setattr(subprocess, "run", run)
    assert say_while.main("installing x", "pip", "install", "x") == 7
    assert "".join(said).startswith("installing x\n")


@pytest.mark.process
def test_it_needs_the_standard_library_alone(tmp_path):
    """It runs before anything is installed, by any Python."""
    script = [sys.executable, "-I", "-S", ROOT / "tests" / "harness" / "say_while.py"]
    done = subprocess.run([*script, "text", "true"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "text\n", "")


@pytest.mark.process
def test_make_says_how_large_torch_is_and_how_to_have_it_for_the_cpu():
    """Before it downloads. As README says."""
    made = subprocess.run(
        ["make", "-n", "-W", "pyproject.toml", "test"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    setting = "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert made.index("2.7 GB") < made.index(f"{setting} make test") < made.index("constraints.txt torch\n")
    assert setting in readme
    assert "2.7 GB with CUDA" in readme
    assert [line for line in made.splitlines() if "pip install" in line and "say_while.py" not in line] == []


@pytest.mark.process
def test_make_refuses_an_old_python_in_a_sentence(tmp_path):
    """Before it makes or downloads anything. That Python could not import what says how long it takes."""
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text("")
    old = tmp_path / "python3.10"
    old.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} -c "import sys; sys.version_info = (3, 10, 9); $2"\n'
    )
    old.chmod(0o755)
    make = ["make", "-f", ROOT / "Makefile", f"PYTHON={old}", "demo"]
    made = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = f"planner needs Python 3.11 or newer, and {old} is 3.10. Name another: make PYTHON=python3.11\n"
    assert made.returncode == 2
    assert "torch" not in made.stdout
    assert made.stderr.startswith(said)
    assert not (tmp_path / ".venv").exists()
