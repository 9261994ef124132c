"""Real trainers of TRL and transformers on processes of this machine: the same losses at every number of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="trl is not installed: pip install '.[trl]'")

pytestmark = pytest.mark.process

HERE, PROJECT = Path(__file__).parent, Path(__file__).parents[2]
METHODS = ("sft", "dpo", "lm")
STEPS, STOP = 7, 3
"""1.2 epochs of 44 rows are 6.6 steps of 8, and the last step is a whole one: it runs into the second epoch"""
CLOSE = 1e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny Llama with a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    subprocess.run([sys.executable, str(PROJECT / "jobs" / "make_llama.py"), str(folder)], check=True)
    return str(folder)


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory):
    """Run `exact_runs.py` with some runs on some processes."""

    def start(workers, runs):
        file = tmp_path_factory.mktemp("runs") / "runs.json"
        file.write_text(json.dumps(runs))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        environment = {**os.environ, "PYTHONPATH": str(PROJECT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, str(HERE / "exact_runs.py"), str(file)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-3000:]

    return start


def lines_of(run):
    return [json.loads(line) for line in Path(run["out"]).read_text().splitlines()]


def run_of(folder, model, method, name, **changes):
    return {
        "method": method,
        "model": model,
        "plug": True,
        "global_batch": 8,
        "folder": str(folder / f"{method}-{name}"),
        "out": str(folder / f"{method}-{name}.log"),
        **changes,
    }


@pytest.fixture(scope="module")
def straight(tmp_path_factory, model, torchrun):
    """Method -> the log of one process, with micro-batches of 2, and TRL's own on the same rows in the same order."""
    folder = tmp_path_factory.mktemp("straight")
    ours = {method: run_of(folder, model, method, "1") for method in METHODS}
    theirs = {
        method: run_of(
            folder,
            model,
            method,
            "plain",
            plug=False,
            accumulation=4,
            settings={"max_steps": STEPS, "save_strategy": "no"},
        )
        for method in METHODS
    }
    torchrun(1, [*ours.values(), *theirs.values()])
    return {method: (lines_of(ours[method]), lines_of(theirs[method])) for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_one_process_trains_as_the_plain_trainer(straight, method):
    """Losses, gradients, learning rates and TRL's own metrics of each step."""
    ours, theirs = straight[method]
    assert [line["step"] for line in ours] == [line["step"] for line in theirs] == list(range(1, STEPS + 1))
    for mine, plain in zip(ours, theirs, strict=True):
        for name in mine.keys() & plain.keys() - {"epoch", "epoch_now"}:
            assert mine[name] == pytest.approx(plain[name], rel=CLOSE, abs=CLOSE), (mine["step"], name)
    assert [line["epoch_now"] for line in ours] == pytest.approx([8 * step / 44 for step in range(1, STEPS + 1)])


@pytest.fixture(scope="module")
def resumed(tmp_path_factory, model, torchrun):
    """Method -> the log of three processes until step 3 and of two from there, with micro-batches of 1: with ghosts."""
    folder = tmp_path_factory.mktemp("resumed")
    runs = {method: run_of(folder, model, method, "resumed", micro=1, resume="newest") for method in METHODS}
    torchrun(3, [{**run, "upto": STOP} for run in runs.values()])
    # What a death in the midst of a save leaves.
    (Path(runs["sft"]["folder"]) / "checkpoint-9").mkdir()
    other_batch = {**runs["sft"], "global_batch": 6, "out": str(folder / "refused")}
    nowhere = {**runs["sft"], "folder": str(folder / "nowhere"), "resume": True, "out": str(folder / "nowhere.log")}
    torchrun(2, [other_batch, nowhere, *runs.values()])
    return folder, {method: lines_of(run) for method, run in runs.items()}


@pytest.mark.parametrize("method", METHODS)
def test_three_processes_and_then_two_train_the_same(straight, resumed, method):
    """No step is missing or repeated, and the learning rate follows the optimizer steps."""
    (alone, _), (_, found) = straight[method], resumed
    assert [line["step"] for line in found[method]] == list(range(1, STEPS + 1))
    for mine, other in zip(found[method], alone, strict=True):
        for name in {
            "loss",
            "grad_norm",
            "learning_rate",
            "epoch_now",
            "rewards/margins",
            "logps/chosen",
        } & mine.keys():
            assert mine[name] == pytest.approx(other[name], rel=CLOSE, abs=CLOSE), (mine["step"], name)


def test_each_process_refuses_another_batch_and_a_missing_checkpoint(resumed):
    """All with the same words, instead of one that fails and another that waits for it."""
    folder, _ = resumed
    for rank in (0, 1):
        text = (folder / f"refused.{rank}").read_text()
        assert text.startswith("ResumeRefused: ")
        assert "checkpoint-3 was trained with other data or another batch: global_batch 8 -> 6" in text
        assert "no whole checkpoint in" in (folder / f"nowhere.log.{rank}").read_text()


@pytest.mark.slow
def test_processes_without_a_sample_change_nothing(tmp_path, model, torchrun):
    """A global batch of 2 on three processes, where one only computes ghosts."""
    settings = {"global_batch": 2, "settings": {"max_steps": 3}}
    runs = {method: run_of(tmp_path, model, method, "three", **settings) for method in METHODS[:2]}
    alone = {method: run_of(tmp_path, model, method, "alone", **settings) for method in METHODS[:2]}
    torchrun(3, list(runs.values()))
    torchrun(1, list(alone.values()))
    for method, run in runs.items():
        for mine, other in zip(lines_of(run), lines_of(alone[method]), strict=True):
            assert mine["loss"] == pytest.approx(other["loss"], rel=CLOSE, abs=CLOSE), method
            assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=CLOSE, abs=CLOSE), method
