"""A server that ends in the middle and comes back, and one that answers late, with MLflow's real client."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from events import EVENT_S, wait_for
from ledgers import Run
from mlflow_server import stored

from planner.job.tracking import MlflowTracking, WandbTracking
from planner.tracking import sender
from planner.tracking.child import End, follow
from planner.tracking.sender import Sender, Subject


class Server:
    """The server, at a port that stays the same."""

    def __init__(self, folder):
        self.store, self._process = folder / "metrics.jsonl", None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self, delay_s=0.0):
        script = Path(__file__).with_name("mlflow_server.py")
        command = [sys.executable, str(script), str(self.store), str(delay_s), str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert int(self._process.stdout.readline()) == self.port

    def kill(self):
        self._process.kill()
        self._process.wait()

    def steps(self):
        return [step for name, step, _ in stored(self.store) if name == "train/loss"]

    def await_step(self, step):
        wait_for(lambda: max(self.steps(), default=0) >= step, self.steps)


@pytest.fixture
def server(tmp_path):
    found = Server(tmp_path)
    yield found
    found.kill()


@pytest.fixture
def soon(monkeypatch):
    """Polls and attempts follow each other quickly."""
    monkeypatch.setattr(sender, "_POLL_S", 0.05)
    monkeypatch.setattr(sender, "_FIRST_RETRY_S", 0.05)
    monkeypatch.setattr(sender, "_LONGEST_RETRY_S", 0.2)


class Following:
    """A sender that follows a run in a thread, as in the driver's child."""

    def __init__(self, run, section):
        self.said, self._ending = [], threading.Event()
        self.sender = Sender(Subject(url=run.url, section=section, name="walk", config={"a": 1}), self.said.append)
        arguments = ([self.sender], self.said.append, self._ending, End(limit_s=EVENT_S))
        self._thread = threading.Thread(target=follow, args=arguments, daemon=True)
        self._thread.start()

    def await_problem(self):
        wait_for(lambda: self.sender.problem, lambda: self.said)

    def await_line(self, line):
        wait_for(lambda: line in self.said, lambda: self.said)

    def end(self):
        self._ending.set()
        self._thread.join(EVENT_S)
        assert not self._thread.is_alive()
        return self.sender


@pytest.mark.process
@pytest.mark.usefixtures("soon")
def test_a_server_that_ends_in_the_middle_has_caught_up_at_the_end(tmp_path, server):
    """Steps that were committed meanwhile come from the ledger. Two lines say that it was away."""
    run = Run(tmp_path / "run").begin(0).steps(5).commit().steps(1)
    server.start()
    following = Following(run, MlflowTracking(uri=f"http://127.0.0.1:{server.port}"))
    server.await_step(5)
    server.kill()
    run.steps(4).commit().steps(1)
    following.await_problem()
    run.steps(4).commit().steps(1)
    server.start()
    following.await_line("mlflow: has caught up, to step 15")  # the server has the rows a moment before
    run.steps(4).commit()
    assert following.end().is_done
    assert server.steps() == list(range(1, 21))
    assert following.said[0].startswith("mlflow: MlflowException: ")


@pytest.mark.process
@pytest.mark.usefixtures("soon")
def test_a_server_that_is_down_at_the_start_gets_everything_later(tmp_path, server):
    """The run began without it."""
    run = Run(tmp_path / "run").begin(0).steps(5).commit()
    following = Following(run, MlflowTracking(uri=f"http://127.0.0.1:{server.port}"))
    run.steps(1)
    following.await_problem()
    server.start()
    server.await_step(5)
    run.commit()
    assert following.end().is_done
    assert server.steps() == list(range(1, 7))


@pytest.mark.process
@pytest.mark.slow
def test_a_server_that_answers_after_ten_seconds_has_everything_at_the_end(tmp_path, server):
    """Five requests open its run, and each batch is one more."""
    run = Run(tmp_path / "run").begin(0).steps(20).commit()
    server.start(delay_s=10.0)
    following = Following(run, MlflowTracking(uri=f"http://127.0.0.1:{server.port}"))
    run.steps(1)
    server.await_step(20)
    run.commit()
    assert following.end().is_done
    assert server.steps() == list(range(1, 22))


@pytest.mark.process
@pytest.mark.usefixtures("soon")
def test_a_wrong_key_is_named(tmp_path, monkeypatch):
    """W&B refuses it. The line says so, and training goes on."""
    monkeypatch.setenv("WANDB_API_KEY", "wrong")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    run = Run(tmp_path / "run").begin(0).steps(2).commit().steps(1)
    following = Following(run, WandbTracking())
    following.await_problem()
    following._ending.set()
    assert following.said[0].startswith("wandb: ")
