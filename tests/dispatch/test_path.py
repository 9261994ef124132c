"""The one path that must always work: a cluster file, a token, a job sent by Ray's own command, and nodes that change.

    make path        some minutes; every later change keeps it green

The cluster is shaped as cluster.yaml: a head without room, spot nodes that Ray's real autoscaler starts and that the
cloud takes back, all behind a token. The cloud is processes on this machine, and the test says what it has.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import pytest
from autoscaler_cluster import AutoscalerCluster
from live_runs import Ledger, records

from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = [pytest.mark.ray, pytest.mark.slow]

PROJECT = Path(__file__).parents[2]
# A sample costs each worker 4 ms, slept: two workers are faster than one however few cores this machine has.
LOOP = PROJECT / "bench" / "_paced_loop.py"
JOB = """
name: path
model: {kind: own}
data: {kind: own, path: code/loop.py}
objective: own
batch: {global: 48, max_micro: 8}
train:
  steps: 1000000
  optimizer: {kind: own}
workers: {min: 1, max: 2, gpus: 0}
checkpoint: {every: 10 steps}
"""


@pytest.fixture
def token(tmp_path):
    """A file with the cluster's token, for its owner alone."""
    file = tmp_path / "token"
    file.write_text("open-sesame-0123456789")
    file.chmod(0o600)
    return file


@pytest.fixture
def run(tmp_path):
    """On a disk that all nodes see."""
    return RunFolder(Storage(str(tmp_path / "run")))


@pytest.fixture
def user(tmp_path, token, run):
    """A user at a terminal, in a folder with a job and its loop."""
    folder = tmp_path / "project"
    # Not beside the job: nodes on one machine unpack it into a folder each, and there would be two modules `loop`.
    (folder / "code").mkdir(parents=True)
    shutil.copy(LOOP, folder / "code" / "loop.py")
    (folder / "job.yaml").write_text(JOB.replace("every: 10 steps", f"every: 10 steps, path: {run.storage.url}"))
    return User(folder, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)})


class User:
    """Types commands."""

    def __init__(self, folder, credentials):
        self._folder = folder
        self.environment = {
            # Without what would name another cluster; with the folder that `python` and `ray` are in.
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            **credentials,
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(PROJECT),
        }

    def does(self, *arguments):
        """What the command prints. It must succeed."""
        done = subprocess.run(
            self._command(arguments),
            cwd=self._folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def doing(self, *arguments):
        """The command, while it goes on; it yields what it has printed so far."""
        log = self._folder.parent / "log"
        with log.open("w") as file:
            process = subprocess.Popen(
                self._command(arguments), cwd=self._folder, env=self.environment, stdout=file, stderr=file
            )
        try:
            yield log.read_text
        except BaseException:
            print(log.read_text())
            raise
        finally:
            process.kill()
            process.wait()

    @staticmethod
    def _command(arguments):
        return [sys.executable, "-m", "planner.cli", *arguments[1:]] if arguments[0] == "planner" else arguments


def test_a_job_is_sent_loses_and_gains_nodes_and_trains_what_was_planned(user, run):
    with AutoscalerCluster(max_nodes=2, available=2, environment=user.environment, nodes_path="") as cluster:
        # Before anything runs: each size that this cluster can have, and what each worker would do there.
        sizes = json.loads(user.does("planner", "plan", "job.yaml", "--cluster", str(cluster.file), "--json"))
        planned = {plan["world_size"]: plan["digest"] for plan in sizes}
        assert set(planned) == {1, 2}

        # Ray's own command, as planner prints it.
        submit = ("planner", "submit", "job.yaml", "--address", cluster.dashboard)
        by_hand = shlex.split(json.loads(user.does(*submit, "--dry-run", "--json"))["by_hand"])
        assert by_hand[:3] == ["ray", "job", "submit"]
        with user.doing(*by_hand) as said:
            ledger = Ledger(run)
            ledger.await_steps(2, 30)
            # A notice: one machine ends in a minute.
            cluster.offer(1, notice_s=60.0)
            ledger.await_steps(1, 15)
            # A growth.
            cluster.offer(2)
            ledger.await_steps(2, 30)
            # A kill: one machine ends now.
            cluster.offer(1)
            ledger.await_steps(1, 15)
            after_kill = max(run.generations())
            user.does("ray", "job", "stop", "--address", cluster.dashboard, submission_id(said()))

        # The same job again, by planner's command: it goes on from what was committed, to its end.
        committed = run.manifest(run.commits()[-1]).step
        log = user.does(*submit, "--follow", "--set", f"train.steps={committed + 10}")
        assert f"resuming at step {committed} of {committed + 10}" in log
        assert f"finished: {committed + 10} steps committed" in log
        noticed, killed = ({event["node"] for event in cluster.events(kind)} for kind in ("notice", "killed"))
        assert (len(noticed), len(killed - noticed), cluster.events("notice failed")) == (1, 1, [])

    # Every group trained what was planned for its size.
    groups = records(run, "generation")
    assert {(group["world_size"], group["plan_digest"]) for group in groups} == set(planned.items())

    # Every sample was used once, and steps were done again after the kill alone.
    audit = json.loads(user.does("planner", "audit", run.storage.url, "--code", "code/loop.py", "--json"))
    assert audit["findings"] == []
    assert (audit["steps"], audit["lost"], audit["repeated"], audit["mismatched"]) == (committed + 10, 0, 0, 0)
    assert [size for size, _ in groupby(phase["world_size"] for phase in audit["phases"])][-4:] == [2, 1, 2, 1]
    again = {phase["generation"]: phase["recomputed_before"] for phase in audit["phases"] if phase["recomputed_before"]}
    assert set(again) <= {after_kill}
    assert steps_told_again(run) == [*again.values()]


def steps_told_again(run):
    """The steps done again that the costs of resizes name, in the ledger."""
    costs = (re.search(r" cost .* with (\d+) steps? done again", event["message"]) for event in records(run, "event"))
    return [int(found[1]) for found in costs if found]


def submission_id(log):
    return re.search(r"Job '(\S+)' submitted successfully", log)[1]
