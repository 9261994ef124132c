"""The real libraries, offline: what stands in each tracker's files, also after their process was killed."""

import json
import signal
import subprocess
import sys
from functools import partial

import pytest
from events import EVENT_S, wait_for
from ledgers import Run, loss, two_losses
from readers import KINDS, offline, series, trackers

from planner.job import Job
from planner.tracking.child import flat
from planner.tracking.tracker import require_installed


def job(run, tracking):
    return Job.model_validate(
        {
            "name": "walk",
            "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16},
            "data": {"kind": "text", "path": "text.txt"},
            "batch": {"global": 12, "max_micro": 4},
            "train": {"steps": 16, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            "checkpoint": {"path": run.url},
            "tracking": tracking,
        }
    )


def child(run, tracking=(), **end):
    """The process of the driver, with all five trackers unless others are named."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "planner.tracking"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=offline(run.url),
    )
    settings = {
        "url": run.url,
        "job": job(run, tracking or trackers(run.url)).model_dump(mode="json", by_alias=True),
        "end": end,
    }
    process.stdin.write(json.dumps(settings) + "\n")
    process.stdin.flush()
    return process


def finished(run):
    """The lines of a child that sends everything and ends."""
    said, _ = child(run, is_patient=True).communicate(timeout=EVENT_S)
    return said.splitlines()


def steps_on_record(run):
    return {file.name.partition("-")[0]: json.loads(file.read_text())["step"] for file in records(run)}


def records(run):
    from pathlib import Path

    return list((Path(run.url) / "tracking").glob("*.json"))


def _have_sent_or_ended(run, step, process):
    """Whether every tracker has this step, or their process has ended."""
    return min(steps_on_record(run).values(), default=-1) >= step or process.poll() is not None


LOSSES = [
    *((step + 1, loss(1, step)) for step in range(4)),
    *((step + 1, loss(2, step)) for step in range(4, 8)),
    *((step + 1, loss(3, step)) for step in range(8, 16)),
]


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """A run whose child was started twice: the second one has nothing to send."""
    run = two_losses(tmp_path_factory.mktemp("sent") / "run")
    return run, finished(run), finished(run)


@pytest.mark.process
def test_all_five_are_sent_and_sent_once(sent):
    """The second process finds every step in every tracker."""
    _, first, second = sent
    assert sorted(first) == sorted(f"{kind}: 17 rows sent, up to step 16" for kind in KINDS)
    assert sorted(second) == sorted(f"{kind}: 0 rows sent, up to step 16" for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_have_the_committed_steps(sent, kind):
    """Strictly rising, with the losses of the committed lineage and the evaluations of their steps."""
    found = series(kind, sent[0].url)
    assert [step for step, _ in found["train/loss"]] == list(range(1, 17))
    assert [value for _, value in found["train/loss"]] == pytest.approx([value for _, value in LOSSES])
    assert found["eval/loss"] == [(0, 3.0), (8, 3.0), (16, 3.0)]
    assert [value for _, value in found["batch/generation"]] == [1] * 4 + [2] * 4 + [3] * 8
    names = {"train/accuracy", "train/grad_norm", "train/lr", "batch/efficiency", "speed/samples_per_s", "time/lost_s"}
    assert names <= found.keys()
    assert found["time/lost_s"][-1] == (16, 8.0)


@pytest.mark.process
@pytest.mark.slow
def test_no_step_is_sent_twice_after_a_kill(tmp_path):
    """The process is killed again and again while the run goes on. In the end all trackers have each step once."""
    run = Run(tmp_path / "run").begin(0)
    for _ in range(4):
        run.steps(20).commit().steps(1)
        process = child(run)
        wait_for(partial(_have_sent_or_ended, run, run.step - 10, process))
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    run.commit()
    finished(run)
    for kind in KINDS:
        assert [step for step, _ in series(kind, run.url)["train/loss"]] == list(range(1, 85)), kind


def test_a_torn_line_is_cut(tmp_path):
    """As a power cut leaves it. TensorBoard's events have checksums of their own."""
    from planner.job.tracking import JsonlTracking
    from planner.tracking.sender import Sender, Subject

    run = two_losses(tmp_path / "run")
    subject = Subject(url=run.url, section=JsonlTracking(), name="walk", config={})
    file = tmp_path / "run" / "tracking.jsonl"
    for torn in ("", '{"step": 17, "tr'):
        first = Sender(subject, print)
        first.send(last=True)
        first.close()
        whole = file.read_text()
        lines = whole.splitlines(keepends=True)
        file.write_text("".join(lines[:9]) + torn)
    Sender(subject, print).send(last=True)
    assert file.read_text() == whole


def test_a_long_last_line_is_read_in_full(tmp_path):
    """A run with thousands of metrics has lines of many KB. A torn one is cut as well."""
    from planner.tracking.jsonl import JsonlFile
    from planner.tracking.row import Row

    path = tmp_path / "rows.jsonl"
    rows = [Row(step=step, time_s=0.0, values={f"train/m{i}": 0.5 for i in range(20_000)}) for step in (1, 2)]
    first = JsonlFile(path, tmp_path, "a")
    first.log(rows)
    first.close()
    assert JsonlFile(path, tmp_path, "a").last_step() == 2
    path.write_bytes(path.read_bytes()[:-1])
    assert JsonlFile(path, tmp_path, "a").last_step() == 1
    assert path.read_bytes().count(b"\n") == 1


def test_another_run_does_not_count_as_sent(tmp_path):
    """A file is refused. In a folder of event files each run has one of its own."""
    from dataclasses import replace

    from planner.errors import TrackerUnavailable
    from planner.job.tracking import JsonlTracking, TensorboardTracking
    from planner.tracking import jsonl, tensorboard
    from planner.tracking.row import Row
    from planner.tracking.tracker import TrackedRun

    run = TrackedRun(url="", folder="", run_id="a" * 32, name="walk", tracker_id="", last_step=-1, config={})
    other = replace(run, run_id="b" * 32)
    file, folder = JsonlTracking(path=f"{tmp_path}/rows.jsonl"), TensorboardTracking(folder=f"{tmp_path}/events")
    for opened in (jsonl.open_tracker(file, run), tensorboard.open_tracker(folder, run)):
        opened.log([Row(step=7, time_s=0.0, values={"train/loss": 1.0})])
        opened.close()
    with pytest.raises(TrackerUnavailable, match="its last line is a row of another run"):
        jsonl.open_tracker(file, other)
    found = [tensorboard.open_tracker(folder, each) for each in (run, other)]
    assert [each.last_step() for each in found] == [7, -1]
    for each in found:
        each.close()


@pytest.mark.process  # mlflow starts git
@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("train/loss", "train/loss"),
        ("train/acc@1", "train/acc_1"),
        ("train/größe, (a)", "train/größe_ _a_"),
        ("train//x/../y/", "train/_/x/_/y/_"),
        ("train/" + "x" * 300, "train/" + "x" * 244),
    ],
)
def test_names_that_mlflow_refuses_are_changed(tmp_path, monkeypatch, name, allowed):
    """One such metric must not keep all others away."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    from planner.tracking.mlflow import allowed_name

    assert allowed_name(name) == allowed
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(str(tmp_path))
    run_id = client.create_run(client.create_experiment("walk")).info.run_id
    client.log_batch(run_id, metrics=[Metric(allowed, 1.0, 1, 1)])


@pytest.mark.process
def test_wandb_is_offline_if_its_variable_says_so(tmp_path, monkeypatch):
    """As for every program that logs to W&B."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = two_losses(tmp_path / "run")
    process = child(run, ["wandb"], is_patient=True)
    assert process.communicate(timeout=EVENT_S)[0] == "wandb: 17 rows sent, up to step 16\n"
    assert [step for step, _ in series("wandb", run.url)["train/loss"]] == list(range(1, 17))


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch):
    """Before anything is started."""
    import importlib.util

    from planner.errors import TrackerUnavailable
    from planner.job.tracking import JsonlTracking, WandbTracking

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    require_installed(JsonlTracking())
    with pytest.raises(
        TrackerUnavailable, match=r"wandb needs the package wandb\. Install it: pip install '\.\[wandb\]'"
    ):
        require_installed(WandbTracking())


def test_nested_settings_are_flat():
    """Lists are text, because trackers show text."""
    assert flat({"a": {"b": {"c": 1}, "d": [1, "x"]}}) == {"a.b.c": 1, "a.d": '[1, "x"]'}
