"""The child as the driver holds it: its lines, its end, and what it may not do to the driver."""

import os
import signal

import pytest
from events import EVENT_S, wait_for
from ledgers import Run, two_losses
from readers import series

from planner.errors import RunError
from planner.job import Job
from planner.runner import track_run, tracking_child
from planner.runner.tracking_child import TrackingChild


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


@pytest.mark.process
@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_the_rest_is_sent_at_the_end(tmp_path, monkeypatch, error):
    """However the driver's work ends. Without a problem, no line is shown, except that a slow end is waited for."""
    monkeypatch.setattr(tracking_child, "_PATIENCE_S", EVENT_S)
    run, said = two_losses(tmp_path / "run"), []
    try:
        with TrackingChild(job(run, "jsonl"), run.url, said.append):
            run.steps(2).commit()
            if error:
                raise error
    except (KeyboardInterrupt, ValueError):
        assert error
    assert [step for step, _ in series("jsonl", run.url)["train/loss"]] == list(range(1, 19))
    waiting = ("tracking: sending the last ", "tracking: waiting at most ")
    assert [line for line in said if not line.startswith(waiting)] == []


def test_a_job_without_trackers_starts_nothing(tmp_path):
    """Not even a process."""
    run = Run(tmp_path / "run").begin(0)
    with TrackingChild(job(run, []), run.url, print) as child:
        assert child._process is None


@pytest.mark.process
def test_a_child_that_is_killed_is_said_and_training_goes_on(tmp_path):
    """With the command that sends the rest. The end of the driver says it once more."""
    run, said = two_losses(tmp_path / "run"), []
    with TrackingChild(job(run, "jsonl"), run.url, said.append) as child:
        os.kill(child._process.pid, signal.SIGKILL)
        wait_for(lambda: said)
    first, second = said
    assert first.startswith("tracking: the process that sends rows has ended (exit code -9). Training goes on. ")
    assert first.endswith(f"Send the rows later: planner track {run.url}")
    assert second == f"tracking: send the rest later: planner track {run.url}"


@pytest.mark.process
@pytest.mark.slow
def test_a_server_that_is_down_until_the_end_leaves_what_is_missing(tmp_path):
    """The driver waits for at most a minute."""
    run, said = two_losses(tmp_path / "run"), []
    with TrackingChild(job(run, {"kind": "mlflow", "uri": "http://127.0.0.1:9"}), run.url, said.append):
        wait_for(lambda: said)
    assert said[0].startswith("tracking: mlflow: MlflowException: ")
    assert said[0].endswith("Training goes on, and planner tries again")
    assert "tracking: sending the last 0 steps to mlflow" in said  # its commits have no manifests
    assert said[-2].startswith("tracking: mlflow: ")
    assert said[-2].endswith(" not sent")
    assert said[-1] == f"tracking: send the rest later: planner track {run.url}"


@pytest.mark.process
def test_a_command_that_follows_shows_problems_while_the_run_goes_on(tmp_path, monkeypatch):
    """The run here ends when the first line was shown."""
    run, said = two_losses(tmp_path / "run"), []
    monkeypatch.setattr(track_run, "_NO_ANSWER_S", 1.0)
    monkeypatch.setattr(track_run, "_LOOK_S", 0.05)
    monkeypatch.setattr(track_run, "_may_run", lambda _url: not said)
    with pytest.raises(RunError, match="not every tracker has all steps"):
        track_run.track(job(run, {"kind": "mlflow", "uri": "http://127.0.0.1:9"}), run.url, said.append, follow=True)
    assert said[0].startswith("mlflow: MlflowException: ")
