"""Folders to type the commands of a page in: a fresh checkout, and one with finished runs."""

import shutil
import subprocess
import sys
import tempfile
from unittest import mock

import pytest
from pages import ROOT
from typed import Reader, own_modules

RECIPE = """\
python -u train.py model=pythia69 datasets=[hh] loss=sft exp_name=sft gradient_accumulation_steps=2 batch_size=64 \\
    eval_batch_size=32 trainer=FSDPTrainer
"""
TINY = [f"model.{name}" for name in ("layers=1", "width=16", "heads=2", "context=16")]


@pytest.fixture
def reader(tmp_path, finished, words_data, monkeypatch):
    """Types commands in a new checkout. Each has a process of its own, but other tests may have imported Ray here."""
    monkeypatch.setattr("planner.runner.start.require_free", lambda **_where: None)
    return Reader(checkout=make_checkout(tmp_path / "checkout"), finished=finished, words_data=words_data)


def make_checkout(folder):
    """A folder with the repository's jobs, docs and cluster file, and files that pages name as the user's."""
    for name in ("jobs", "docs"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "cluster.yaml", folder)
    shutil.copy(ROOT / "jobs" / "own_loop.py", folder / "my_loop.py")
    (folder / "recipe.sh").write_text(RECIPE)
    for name, text in {"corpus/a.txt": "some text\n" * 99, "rows/a.jsonl": '{"text": "some text"}\n' * 9}.items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A checkout with two finished runs: `runs/demo`, of a smaller model, and `runs/own-loop`."""
    folder = make_checkout(tmp_path_factory.mktemp("finished") / "checkout")
    train(folder, "demo", "jobs/demo.yaml", [*TINY, "batch.equality=bitwise", "train.steps=3", "eval.samples=5"])
    train(folder, "own-loop", "jobs/own_loop.yaml", ["train.steps=2", "eval.samples=5"])
    return folder


def train(folder, name, job, overrides):
    """One worker trains a job of the folder to its end, in this process."""
    import torch.distributed as dist

    from planner.files import read_job
    from planner.train.generation import train as train_generation
    from planner.train.hooks import Hooks
    from planner.train.setup import Launch
    from planner.train.world import cpu_device

    spec = read_job(folder / job, overrides)
    if spec.is_own:  # its path is relative to the folder
        spec = spec.model_copy(update={"data": spec.data.model_copy(update={"path": str(folder / spec.data.path)})})
    paths = mock.patch.object(sys, "path", [*sys.path])
    with tempfile.TemporaryDirectory() as rendezvous, paths, own_modules():
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}/file", rank=0, world_size=1)
        try:
            train_generation(Launch(job=spec, url=str(folder / "runs" / name)), cpu_device, Hooks())
        finally:
            dist.destroy_process_group()


@pytest.fixture(scope="session")
def words_data(tmp_path_factory):
    """The folder that `python jobs/make_data.py FOLDER` makes."""
    folder = tmp_path_factory.mktemp("data") / "words"
    subprocess.run([sys.executable, ROOT / "jobs" / "make_data.py", folder], check=True, capture_output=True)
    return folder
