"""`planner run` as a user types it, on its own embedded cluster."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from live_runs import LIMIT_S, command_line

from planner.local_cluster.embedded import EmbeddedCluster
from planner.local_cluster.environment import driver_environment
from planner.local_cluster.processes import members
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]

JOB = """
name: typed
model: {kind: gpt, layers: 1, width: 32, heads: 2, context: 64}
data: {kind: jsonl, path: rows.jsonl}
batch: {global: 10, max_micro: 3}
train:
  steps: 5000
  optimizer: {kind: adamw, lr: 1e-3}
workers: {max: 2, gpus: 0}
checkpoint: {every: 5}
"""


@pytest.fixture
def folder(tmp_path):
    """A working directory with a job and its data."""
    (tmp_path / "job.yaml").write_text(JOB)
    rows = [json.dumps({"text": f"row {i} " * (i % 9)}) for i in range(100)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path


def start(folder, *arguments, ignores_sigint=False):
    # An address on loopback reaches an embedded cluster only with what `driver_environment` says.
    package = {"PYTHONPATH": str(Path(__file__).parents[2]), "RAY_ADDRESS": ""}
    environment = {**os.environ, **driver_environment(), **package}
    shell = ["env", "--ignore-signal=INT"] if ignores_sigint else []  # as a shell starts what it puts behind itself
    return subprocess.Popen(
        [*shell, sys.executable, "-m", "planner.cli", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_commits(folder, least):
    run = RunFolder(Storage(str(folder / "runs" / "typed")))
    deadline = time.monotonic() + LIMIT_S
    while len(run.commits()) < least:
        assert time.monotonic() < deadline, f"{len(run.commits())} commits of {least}"
        time.sleep(0.2)
    return run


def wait_for_generation(run, after):
    """Until a generation later than that has committed."""
    deadline = time.monotonic() + LIMIT_S
    while int(run.commits()[-1][13:]) <= after and time.monotonic() < deadline:
        time.sleep(0.2)
    assert int(run.commits()[-1][13:]) > after


@pytest.mark.slow  # `make chaos` does so, too
def test_a_second_driver_is_refused_and_the_first_goes_on(folder):
    """One line that names the first one's pid, no cluster; the first commits on, and Ctrl-C ends it as ever."""
    first = start(folder, "run", "job.yaml", "--nodes", "1")
    run = wait_for_commits(folder, 1)
    second = start(folder, "run", "job.yaml", "--nodes", "1")
    out, err = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 1
    assert out == ""
    assert f"another driver (pid {first.pid} on " in err
    assert f"(kill {first.pid} on " in err
    assert len(err.splitlines()) == 1
    assert first.poll() is None
    wait_for_commits(folder, len(run.commits()) + 2)
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 130, (out, err)
    assert run.newest_generation() == 1
    assert f"interrupted: step {run.manifest(run.commits()[-1]).step} of 5000 is committed" in out


def test_a_killed_driver_is_resumed_by_the_same_command_at_once(folder):
    """SIGKILL leaves its lease behind. The next driver does not wait for its beats, and a later generation goes on."""
    killed = start(folder, "run", "job.yaml", "--nodes", "1")
    run = wait_for_commits(folder, 2)
    killed.kill()
    assert killed.wait(timeout=LIMIT_S) == -signal.SIGKILL
    committed, generation = run.manifest(run.commits()[-1]).step, run.newest_generation()
    again = start(folder, "run", "job.yaml", "--nodes", "1")
    opening = again.stdout.readline()
    assert "typed: resuming at step " in opening
    assert int(opening.split()[4]) >= committed
    wait_for_generation(run, generation)
    again.send_signal(signal.SIGINT)
    out, err = again.communicate(timeout=LIMIT_S)
    assert again.returncode == 130, (out, err)
    audit = start(folder, "audit", "runs/typed")
    out, err = audit.communicate(timeout=LIMIT_S)
    assert audit.returncode == 0, (out, err)


@pytest.mark.parametrize("ignores_sigint", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_interrupted_run_keeps_its_commit_and_says_how_to_resume(folder, ignores_sigint):
    """Exit code 130 and no traceback; typing what it says resumes there, and the audit is clean.

    By Ctrl-C; and by SIGTERM, where a background shell has started it with SIGINT ignored, which stays ignored.
    """
    process = start(folder, "run", "job.yaml", "--nodes", "2", ignores_sigint=ignores_sigint)
    run = wait_for_commits(folder, 3)
    process.send_signal(signal.SIGINT)
    if ignores_sigint:
        wait_for_commits(folder, len(run.commits()) + 2)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in out + err
    assert "stopping: all workers finish their step, then it becomes durable" in out
    committed = run.manifest(run.commits()[-1]).step
    assert f"interrupted: step {committed} of 5000 is committed" in out
    assert "Resume with: planner run job.yaml" in out

    end = committed + 3
    finished = start(folder, "run", "job.yaml", "--nodes", "1", "--set", f"train.steps={end}")
    out, err = finished.communicate(timeout=LIMIT_S)
    assert finished.returncode == 0, (out, err)
    assert f"resuming at step {committed} of {end}" in out
    assert f"finished: {end} steps committed" in out

    audit = start(folder, "audit", "runs/typed")
    out, err = audit.communicate(timeout=LIMIT_S)
    assert audit.returncode == 0, (out, err)
    assert "lost          0" in out
    assert "recomputed    0 steps" in out  # all workers had committed before they were ended


def process_of_the_head(driver, name):
    """The process id of the head's raylet or gcs_server, among those that a driver has started."""
    for pid in members(driver.pid):
        arguments = command_line(pid).split("\0")
        if arguments[0].endswith(f"/{name}") and (name != "raylet" or "--head" in arguments):
            return pid
    raise AssertionError(f"no {name} below {driver.pid}")


@pytest.mark.slow  # `make faults` has it; tests/cli/test_driver_end.py takes heads from drivers in CI
@pytest.mark.parametrize(
    ("name", "says"),
    [
        # On a busy machine both may have ended when somebody looks.
        ("raylet", ("planner: the raylet of this driver's node has died: ", "planner: this driver and its local Ray ")),
        ("gcs_server", ("planner: the head's gcs_server (127.0.0.1:",)),
    ],
)
def test_a_head_that_is_killed_ends_the_run_with_what_is_committed(folder, name, says):
    """SIGKILL: exit code 1, what is safe and the command that resumes; typed, it goes on from there."""
    process = start(folder, "run", "job.yaml", "--nodes", "1")
    run = wait_for_commits(folder, 2)
    before = run.manifest(run.commits()[-1]).step
    os.kill(process_of_the_head(process, name), signal.SIGKILL)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, (out, err)
    last = next(line for line in err.splitlines() if line.startswith("planner: "))
    assert last.startswith(says)
    words = f" of 5000 is committed in {run.storage.url}. Resume with: "
    assert words in last, last
    told, _, resume = last.partition(words)
    # A worker lives on for a moment, and may commit once more after that was told.
    steps = [run.manifest(name).step for name in run.commits()]
    assert int(told.rpartition(": step ")[2]) in [step for step in steps if step >= before]
    assert shlex.split(resume) == ["planner", "run", "job.yaml", "--nodes", "1"]
    end = steps[-1] + 3
    finished = start(folder, *shlex.split(resume)[1:], "--set", f"train.steps={end}")
    out, err = finished.communicate(timeout=LIMIT_S)
    assert finished.returncode == 0, (out, err)
    assert f"resuming at step {steps[-1]} of {end}" in out


@pytest.mark.slow
def test_a_job_that_waits_for_nodes_says_so_and_can_be_interrupted(folder):
    """workers.min above what the cluster has: a line that says so, and Ctrl-C ends it; nothing was committed."""
    # A cluster of its own: for three minutes Ray keeps what an aborted job had asked for away from the next one.
    with EmbeddedCluster(num_nodes=1) as cluster:
        sizes = ("--set", "workers.min=9", "--set", "workers.max=9")
        process = start(folder, "run", "job.yaml", "--address", cluster.address, *sizes)
        first = process.stdout.readline() + process.stdout.readline()
        assert "waiting: the cluster has room for 1 worker, and workers.min is 9. The run begins when" in first, first
        assert process.stdout.readline()  # the controller has begun to wait
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, (out, err)
    assert "interrupted: nothing was committed yet" in out


@pytest.mark.slow
def test_verify_on_ray_loses_real_nodes_and_finds_the_same_bits(folder):
    """Two workers; then two, one after a node's SIGKILL, and three after two nodes came: one hash."""
    bitwise = ["batch.equality=bitwise", "model.dropout=0.1", "batch.global=7"]
    settings = [argument for item in bitwise for argument in ("--set", item)]
    command = ("verify", "job.yaml", "--ray", "--history", "2,1,3", "--steps", "7", "--json", *settings)
    process = start(folder, *command)
    out, err = process.communicate(timeout=1000)
    assert process.returncode == 0, out + err
    found = json.loads(out)
    results = {check["what"]: check["words"] for check in found["checks"]}
    assert found["passed"]
    assert results["world sizes"] == "2, 1, 3"
    assert results["samples"] == "equal at 7 steps"
    assert "SHA-256" in results["weights"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_ten_planned_and_five_unplanned_changes_give_the_same_bits(folder):
    """Six nodes come, four get notice, five die: the final hash is the undisturbed run's."""
    bitwise = ["batch.equality=bitwise", "model.dropout=0.1", "batch.global=7"]
    settings = [argument for item in bitwise for argument in ("--set", item)]
    history = "4,3,2,3,2,3,2,1,2,1,2,1,2,1,3,2"
    process = start(folder, "verify", "job.yaml", "--ray", "--history", history, "--steps", "48", "--json", *settings)
    out, err = process.communicate(timeout=1400)
    assert process.returncode == 0, out + err
    results = {check["what"]: check["words"] for check in json.loads(out)["checks"]}
    assert results["world sizes"] == history.replace(",", ", ")
