"""Fixtures that call the command line in this process, in a folder of their own, and one small real run."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import planner.cli
from planner.errors import RunError

JOB = """
name: tiny
model: {kind: gpt, layers: 1, width: 16, heads: 2, context: 16}
data: {kind: text, path: TEXT}
batch: {global: 6, max_micro: 4}
train:
  steps: 4
  optimizer: {kind: adamw, lr: 1e-3}
eval: {samples: 5, every: 2}
workers: {gpus: 0}
checkpoint: {path: RUN, every: 2}
"""
OWN_JOB = """
name: own
model: {kind: own}
data: {kind: own, path: loop.py}
objective: own
batch: {global: 6, max_micro: 4}
train: {steps: 4, optimizer: {kind: own}}
workers: {gpus: 0}
"""
TEXT = "the quick brown fox jumps over the lazy dog\n" * 40


@dataclass(frozen=True)
class Answer:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _not_told_what_takes_long(monkeypatch):
    """On a slow machine, any command may take three seconds. `test_silence.py` looks at what is said then."""
    monkeypatch.setattr("planner.base.wait_reports.SILENCE_S", float("inf"))


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """Calls the console script with these arguments in `tmp_path`. Starting a cluster raises an error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name in [name for name in os.environ if name.startswith("RAY_")]:  # also the token of the dispatch tests
        monkeypatch.delenv(name)
    # Ray reads its mode once in a process. If that was `token` in another test, it asks for a token now.
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)

    def start(*_arguments):
        raise RunError("a cluster would have been started")

    monkeypatch.setattr("planner.runner.execute.embedded", start)
    # A command has a process of its own. Other tests may have imported Ray into this one, or connected it.
    monkeypatch.setattr("planner.runner.start.require_free", lambda **_where: None)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["planner", *map(str, arguments)])
        before = dict(os.environ)
        code = 0
        try:
            planner.cli.main()
        except SystemExit as end:
            code = end.code or 0
        finally:
            for name in set(os.environ) - set(before):
                del os.environ[name]
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture
def own_job(tmp_path):
    """A job file with a training loop of the user's own, `loop.py` beside it. A test writes that if it is read."""
    file = tmp_path / "own.yaml"
    file.write_text(OWN_JOB)
    return file


@pytest.fixture
def job(tmp_path):
    """A job file in `tmp_path`, with its text file. Its run is in `run`."""
    (tmp_path / "text.txt").write_text(TEXT)
    file = tmp_path / "job.yaml"
    file.write_text(JOB.replace("TEXT", "text.txt").replace("RUN", "run"))
    return file


@dataclass(frozen=True)
class Recorded:
    """A run of four steps in two generations by one worker, and its job."""

    folder: Path
    run: Path
    job: Path
    text: Path


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """Made once. A test that damages the run makes a copy."""
    import torch.distributed as dist

    from planner.files import read_job
    from planner.train.generation import train
    from planner.train.hooks import Hooks
    from planner.train.setup import Launch
    from planner.train.world import cpu_device

    # Every name on the way holds what a terminal library would like to interpret.
    folder = tmp_path_factory.mktemp("recorded") / "[bold]of[-bold] :smile:"
    folder.mkdir()
    made = Recorded(folder, folder / "run", folder / "job.yaml", folder / "text.txt")
    made.text.write_text(TEXT)
    quoted = (JOB.replace("TEXT", f'"{made.text}"')).replace("RUN", f'"{made.run}"')
    made.job.write_text(quoted)
    job = read_job(made.job)
    rendezvous = tmp_path_factory.mktemp("rendezvous") / "file"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    try:
        asked = []

        def after_two(_step):
            asked.append(None)
            return len(asked) > 2

        launch = Launch(job=job, url=str(made.run))
        train(launch, cpu_device, Hooks(should_stop=after_two))
        train(launch, cpu_device, Hooks())
    finally:
        dist.destroy_process_group()
    return made
