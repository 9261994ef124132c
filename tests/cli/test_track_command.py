"""`planner track`: what a run's trackers lack is sent, and nothing twice."""

import json

import pytest
import torch.distributed as dist

from planner.files import parse_job
from planner.runner import track_run
from planner.train.generation import train
from planner.train.hooks import Hooks
from planner.train.setup import Launch
from planner.train.world import cpu_device

JOB = """
name: walk
model: {kind: gpt, layers: 1, width: 16, heads: 2, context: 16}
data: {kind: text, path: TEXT}
batch: {global: 6, max_micro: 4}
train: {steps: 4, optimizer: {kind: adamw, lr: 1e-3}}
eval: {samples: 6, every: 2}
workers: {gpus: 0}
checkpoint: {path: RUN, every: 2}
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """`job(tracking)` -> a job, without a variable that names a server."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    text = JOB.replace("TEXT", str(tmp_path / "text.txt")).replace("RUN", str(tmp_path / "run"))
    return lambda tracking="[]", steps=4: parse_job(text, overrides=[f"tracking={tracking}", f"train.steps={steps}"])


@pytest.fixture
def trained(tmp_path):
    """`trained(job)` trains it, in a process group with this process alone in it."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield lambda job: train(Launch(job=job, url=job.run_path), cpu_device, Hooks())
    dist.destroy_process_group()


def rows(tmp_path):
    return [json.loads(line) for line in (tmp_path / "run" / "tracking.jsonl").read_text().splitlines()]


@pytest.mark.process
def test_a_run_without_trackers_gets_one(cli, job, trained, tmp_path):
    """All its steps are sent, once. A resumed run continues, and its job may name other trackers without --accept."""
    trained(job())
    answer = cli("track", "run")
    assert (answer.code, answer.out) == (2, "")
    assert "its job names no trackers. Name one: planner track " in answer.err
    answer = cli("track", "run", "--tracking", "jsonl", "--tracking", "{kind: tensorboard, folder: tb}")
    assert (answer.code, answer.err) == (0, "")
    both = ["jsonl: 5 rows sent, up to step 4", "tensorboard: 5 rows sent, up to step 4"]
    assert sorted(answer.out.splitlines()) == both
    assert list((tmp_path / "tb").iterdir())
    assert cli("track", "run", "--tracking", "jsonl", "--follow").out == "jsonl: 0 rows sent, up to step 4\n"

    trained(job("jsonl", steps=6))
    assert cli("track", "run").out == "jsonl: 2 rows sent, up to step 6\n"
    found = rows(tmp_path)
    assert [row["step"] for row in found] == list(range(7))
    assert [row["step"] for row in found if "eval/loss" in row] == [0, 2, 4, 6]


@pytest.mark.process
def test_a_tracker_that_cannot_be_reached_is_an_error(cli, job, trained, monkeypatch):
    """Exit code 1, with what it said and how many steps it lacks. The run ends when the tracker has failed once."""
    said, lines_of = [], track_run.lines_of

    def heard(process):
        for line in lines_of(process):
            said.append(line)
            yield line

    monkeypatch.setattr(track_run, "lines_of", heard)
    monkeypatch.setattr(track_run, "_may_run", lambda _url: not said)
    monkeypatch.setattr(track_run, "_LOOK_S", 0.05)
    monkeypatch.setattr(track_run, "_NO_ANSWER_S", 1.0)  # from then on
    trained(job())
    answer = cli("track", "run", "--tracking", "{kind: mlflow, uri: 'http://127.0.0.1:9'}", "--follow")
    assert answer.code == 1
    first, second = answer.out.splitlines()
    assert first.startswith("mlflow: MlflowException: ")
    assert second.startswith("mlflow: 4 steps not sent")
    assert answer.err.endswith("not every tracker has all steps. Correct what is named above, and run it again\n")


@pytest.mark.parametrize(
    ("tracker", "says"),
    [
        (
            "jsonn",
            '--tracking: tracking[0].kind: found "jsonn" (text). Write one of jsonl, mlflow, tensorboard, trackio',
        ),
        ("{kind: wandb, projct: a}", "found an unknown key. Did you mean tracking[0].project?"),
        ("mlflow", "mlflow does not know its server. Write tracking.uri, or set the variable MLFLOW_TRACKING_URI"),
    ],
)
def test_a_wrong_tracker_is_told_what_to_write(cli, job, trained, tracker, says):
    """Before anything is sent."""
    trained(job())
    answer = cli("track", "run", "--tracking", tracker)
    assert answer.code == 2
    assert says in answer.err
    assert answer.err.count("\n") == 1


def test_a_folder_without_a_run_is_named(cli):
    """As by the other commands."""
    assert "no run here" in cli("track", "nowhere").err
    assert "RUN is empty" in cli("track", "").err
