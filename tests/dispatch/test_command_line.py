"""`planner run` as a user types it, and `planner.run` from Python, on embedded clusters of their own."""

import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from events import ended, wait_for
from live_runs import command_line

from planner.local_cluster.embedded import EmbeddedCluster
from planner.local_cluster.environment import driver_environment
from planner.local_cluster.processes import members
from planner.provenance.audit import audit
from planner.store.commit_names import commit_of
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = pytest.mark.ray

JOB = """
name: typed
model: {kind: gpt, layers: 1, width: 32, heads: 2, context: 64}
data: {kind: jsonl, path: rows.jsonl}
batch: {global: 10, max_micro: 3}
train:
  steps: 5000
  optimizer: {kind: adamw, lr: 1e-3}
workers: {max: 2, gpus: 0}
checkpoint: {every: 5, memory: off}
"""


# As docs/reference/python-api.md shows it. A second call has nothing to do.
MINE = """
import planner
if __name__ == "__main__":
    result = planner.run("job.yaml", nodes=2, say=print)
    print(result.step, result.finished, planner.audit(result.url).clean, planner.run("job.yaml").step)
"""


def made(folder):
    """A working directory with a job and its data."""
    (folder / "job.yaml").write_text(JOB)
    rows = [json.dumps({"text": f"row {i} " * (i % 9)}) for i in range(100)]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def folder(tmp_path):
    """A folder for runs of the test's own."""
    return made(tmp_path)


def start(folder, *arguments, ignores_sigint=False):
    """A command of planner."""
    shell = ["env", "--ignore-signal=INT"] if ignores_sigint else []  # as a shell starts what it puts behind itself
    # An address on loopback reaches an embedded cluster only with what `driver_environment` says.
    return started(folder, *shell, sys.executable, "-m", "planner.cli", *arguments, **driver_environment())


def started(folder, *command, **variables):
    """A process that finds this checkout, and no cluster of others."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**mine, "PYTHONPATH": str(Path(__file__).parents[2]), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_in(folder):
    return RunFolder(Storage(str(folder / "runs" / "typed")))


def wait_for_commits(folder, least, driver):
    """Until there are so many. The driver must not end before."""
    run = run_in(folder)
    wait_for(lambda: len(run.commits()) >= least or driver.poll() is not None)
    assert driver.poll() is None, driver.communicate()
    return run


def wait_for_generation(run, after, driver):
    """Until a generation later than that has committed. The driver must not end before."""
    wait_for(lambda: commit_of(run.commits()[-1])[1] > after or driver.poll() is not None)
    assert driver.poll() is None, driver.communicate()


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A run that is killed, typed again and interrupted, and what its drivers printed."""

    folder: Path
    run: RunFolder
    committed: int
    """step of the last commit of the driver that was killed"""
    opening: str
    """the first line of the next one"""
    interrupted: tuple[int, str, str]
    """its exit code, and the rest of its output"""
    left: int
    """step of its last commit"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """One run, two drivers."""
    folder = made(tmp_path_factory.mktemp("typed"))
    typed = ("run", "job.yaml", "--nodes", "1")
    killed = start(folder, *typed)
    run = wait_for_commits(folder, 2, killed)
    killed.kill()
    killed.communicate()
    committed, generation = run.manifest(run.commits()[-1]).step, run.newest_generation()

    again = start(folder, *typed)
    opening = again.stdout.readline()
    wait_for_generation(run, generation, again)
    again.send_signal(signal.SIGINT)
    interrupted = ended(again)
    left = run.manifest(run.commits()[-1]).step
    return Seen(folder=folder, run=run, committed=committed, opening=opening, interrupted=interrupted, left=left)


def test_a_killed_driver_is_resumed_by_the_same_command_at_once(seen):
    """SIGKILL leaves its lease behind. The next driver does not wait for its beats, and a later generation goes on."""
    assert "typed: resuming at step " in seen.opening, seen.interrupted
    assert int(seen.opening.split()[4]) >= seen.committed


def test_an_interrupted_run_keeps_its_commit_and_says_how_to_resume(seen):
    """Ctrl-C: exit code 130 and no traceback, and the step at which it stopped is durable."""
    code, out, err = seen.interrupted
    assert code == 130, (out, err)
    assert "Traceback" not in out + err
    assert "stopping: all workers finish their step, then it becomes durable" in out
    assert f"interrupted: step {seen.left} of 5000 is committed" in out
    assert "Resume with: planner run job.yaml --nodes 1" in out
    found = audit(seen.run)
    assert (found.findings, found.steps, found.lost, found.repeated) == ((), seen.left, 0, 0)


@pytest.mark.slow  # CI has planner.run without a cluster (tests/cli/test_python_api.py) and the rest by `planner run`
def test_a_run_from_python_resumes_at_another_size_and_finishes(seen):
    """On a local cluster, in a process of its own: no step is lost, and none is done again after the interrupt."""
    end = seen.left + 3
    (seen.folder / "job.yaml").write_text(JOB.replace("steps: 5000", f"steps: {end}"))
    (seen.folder / "mine.py").write_text(MINE)
    code, out, err = ended(started(seen.folder, sys.executable, "mine.py"))
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith(f"typed: resuming at step {seen.left} of {end} in ")
    assert lines[1] == "starting a local Ray cluster with room for 2 workers"
    assert lines[-1] == f"{end} True True {end}"
    found = audit(seen.run)
    assert (found.findings, found.steps, found.lost, found.repeated) == ((), end, 0, 0)
    assert [phase.world_size for phase in found.phases] == [1, 1, 2]
    assert found.phases[-1].recomputed_before == 0


@pytest.mark.slow  # `make chaos` does so, too
def test_a_second_driver_is_refused_and_the_first_goes_on(folder):
    """One line that names the first one's pid, no cluster; the first commits on, and Ctrl-C ends it as ever."""
    first = start(folder, "run", "job.yaml", "--nodes", "1")
    run = wait_for_commits(folder, 1, first)
    code, out, err = ended(start(folder, "run", "job.yaml", "--nodes", "1"))
    assert code == 1
    assert out == ""
    assert f"another driver (pid {first.pid} on " in err
    assert f"(kill {first.pid} on " in err
    assert len(err.splitlines()) == 1
    wait_for_commits(folder, len(run.commits()) + 2, first)
    first.send_signal(signal.SIGINT)
    code, out, err = ended(first)
    assert code == 130, (out, err)
    assert run.newest_generation() == 1
    assert f"interrupted: step {run.manifest(run.commits()[-1]).step} of 5000 is committed" in out


@pytest.mark.slow  # CI has Ctrl-C and one node, above
@pytest.mark.parametrize("ignores_sigint", [False, True])
def test_what_an_interrupted_run_says_resumes_it(folder, ignores_sigint):
    """Two workers, and then the command that it has printed: the run goes on from there, and the audit is clean.

    By Ctrl-C; and by SIGTERM, where a background shell has started it with SIGINT ignored, which stays ignored.
    """
    process = start(folder, "run", "job.yaml", "--nodes", "2", ignores_sigint=ignores_sigint)
    run = wait_for_commits(folder, 3, process)
    process.send_signal(signal.SIGINT)
    if ignores_sigint:
        wait_for_commits(folder, len(run.commits()) + 2, process)
        process.send_signal(signal.SIGTERM)
    code, out, err = ended(process)
    assert code == 130, (out, err)
    assert "Traceback" not in out + err
    assert "stopping: all workers finish their step, then it becomes durable" in out
    committed = run.manifest(run.commits()[-1]).step
    assert f"interrupted: step {committed} of 5000 is committed" in out
    assert "Resume with: planner run job.yaml" in out

    end = committed + 3
    code, out, err = ended(start(folder, "run", "job.yaml", "--nodes", "1", "--set", f"train.steps={end}"))
    assert code == 0, (out, err)
    assert f"resuming at step {committed} of {end}" in out
    assert f"finished: {end} steps committed" in out

    code, out, err = ended(start(folder, "audit", "runs/typed"))
    assert code == 0, (out, err)
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
    run = wait_for_commits(folder, 2, process)
    before = run.manifest(run.commits()[-1]).step
    os.kill(process_of_the_head(process, name), signal.SIGKILL)
    code, out, err = ended(process)
    assert code == 1, (out, err)
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
    code, out, err = ended(start(folder, *shlex.split(resume)[1:], "--set", f"train.steps={end}"))
    assert code == 0, (out, err)
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
        code, out, err = ended(process)
    assert code == 130, (out, err)
    assert "interrupted: nothing was committed yet" in out


@pytest.mark.slow
def test_verify_on_ray_loses_real_nodes_and_finds_the_same_bits(folder):
    """Two workers; then two, one after a node's SIGKILL, and three after two nodes came: one hash."""
    bitwise = ["batch.equality=bitwise", "model.dropout=0.1", "batch.global=7"]
    settings = [argument for item in bitwise for argument in ("--set", item)]
    command = ("verify", "job.yaml", "--ray", "--history", "2,1,3", "--steps", "7", "--json", *settings)
    process = start(folder, *command)
    out, err = process.communicate()
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
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    results = {check["what"]: check["words"] for check in json.loads(out)["checks"]}
    assert results["world sizes"] == history.replace(",", ", ")
