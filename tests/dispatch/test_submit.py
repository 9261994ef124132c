"""`planner submit` as a user types it, to a cluster on loopback that wants a token."""

import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from events import EVENT_S, ended, wait_for

from planner.local_cluster.environment import loopback_environment
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = pytest.mark.ray
PROJECT = Path(__file__).parents[2]
JOB = """
name: sent
model: {kind: gpt, layers: 1, width: 16, heads: 2, context: 16}
data: {kind: jsonl, path: rows.jsonl}
batch: {global: 4, max_micro: 4}
train:
  steps: 100000
  optimizer: {kind: adamw, lr: 1e-3}
workers: {max: 1, gpus: 0}
checkpoint: {every: 20}
"""


@dataclass(frozen=True)
class Place:
    """A cluster's dashboard, and what its clients must know."""

    address: str
    head: str
    environment: dict[str, str]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The cluster, ended with all that it started when the module is done."""
    token = tmp_path_factory.mktemp("secret") / "token"
    token.write_text("open-sesame-0123456789")
    token.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    home = tempfile.mkdtemp(prefix="pl-", dir="/tmp")  # short: Ray's socket paths stay below about 100 characters
    environment = {
        # Without what would name another cluster; with the folder that `python` and `ray` are in.
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        **loopback_environment(),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(PROJECT),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
    }
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "job_cluster.py"), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environment, "RAY_TMPDIR": home, "GLOO_SOCKET_IFNAME": "lo"},
        start_new_session=True,
    )
    try:
        assert select.select([process.stdout], [], [], EVENT_S)[0], f"the cluster did not start in {EVENT_S:.0f} s"
        where = json.loads(process.stdout.readline())
        yield Place(f"http://{where['dashboard']}", where["gcs"], environment)
    finally:
        process.communicate(timeout=EVENT_S)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a job and its data, from which both are sent; the run goes to one beside it."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "job.yaml").write_text(JOB)
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(50)))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return RunFolder(Storage(str(tmp_path_factory.mktemp("shared") / "run")))


@pytest.fixture
def start(place, folder, run):
    """`planner submit` with these arguments, in the folder."""

    def call(*arguments, **environment):
        command = ("submit", "job.yaml", "--address", place.address, "--set", f"checkpoint.path={run.storage.url}")
        return subprocess.Popen(
            [sys.executable, "-m", "planner.cli", *command, *arguments],
            cwd=folder,
            env={**place.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return call


def await_commits(run, least, follower):
    """Until there are so many. Who follows the job must not have ended before."""
    wait_for(lambda: len(run.commits()) >= least or follower.poll() is not None)
    assert follower.poll() is None, follower.communicate()


def command_named(name, out):
    line = next(line for line in out.splitlines() if line.startswith(f"  {name} "))
    return shlex.split(line)[1:]


@pytest.mark.slow
def test_one_leaves_a_job_stops_it_and_sends_it_again(start, place, run):
    """Ctrl-C leaves it running; `ray job stop` as printed ends it in order; the same command goes on to the end."""
    followed = start("--follow")
    await_commits(run, 1, followed)
    followed.send_signal(signal.SIGINT)
    code, out, err = ended(followed)
    assert code == 130, (out, err)
    assert err == ""
    assert "sent: a new run in" in out
    assert "is still running\n" in out
    known = len(run.commits())
    wait_for(lambda: len(run.commits()) > known)

    def asked(name):
        command = command_named(name, out)
        done = subprocess.run(command, env=place.environment, capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    asked("stop")
    committed = run.manifest(run.commits()[-1]).step
    words = f"interrupted: step {committed} of 100000 is committed in {run.storage.url}. Resume with: planner submit "
    assert words in asked("log")

    end = committed + 3
    assert command_named("resume", out)[:3] == ["planner", "submit", "job.yaml"]
    code, out, err = ended(start("--follow", "--set", f"train.steps={end}"))
    assert (code, err) == (0, ""), out
    assert f"resuming at step {committed} of {end}" in out
    assert f"finished: {end} steps committed" in out
    assert out.endswith(" succeeded\n")


def test_a_job_that_ends_and_one_that_fails_give_their_exit_codes(start, run):
    """Two steps, and then a run that its driver on the cluster refuses; JSON on stdout, the log on stderr."""
    steps = 2 if not run.commits() else run.manifest(run.commits()[-1]).step
    code, out, err = ended(start("--follow", "--set", f"train.steps={steps}"))
    assert (code, err) == (0, ""), out
    assert out.endswith(" succeeded\n")
    committed = run.manifest(run.commits()[-1])
    assert committed.step == steps
    assert run.job(committed.job_digest).data.path == "rows.jsonl"  # as it was sent, not as Ray unpacked it

    generations = run.generations()
    code, out, err = ended(start("--follow", "--json", "--set", "train.seed=5"))
    found = json.loads(out)
    assert code == found["exit_code"] == 1
    assert (found["status"], found["reason"]) == ("FAILED", "exit code 1")
    assert "the run was made with another seed (train.seed: 0 -> 5)" in err
    assert "--accept seed" in err
    assert run.generations() == generations  # the workers refused it once: Ray does not try again and again


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"RAY_AUTH_MODE": ""}, "the cluster requires a token. Set RAY_AUTH_MODE=token"),
        (
            {"RAY_AUTH_TOKEN": "wrong"},
            "the cluster rejected the token in RAY_AUTH_TOKEN. Run ray get-auth-token",
        ),
        ({"RAY_AUTH_TOKEN_PATH": "/not/there"}, "RAY_AUTH_TOKEN_PATH is set but file cannot be opened"),
    ],
)
def test_without_the_right_token_nothing_is_sent(start, environment, says):
    """Missing, wrong, unreadable: one line and exit code 2."""
    code, out, err = ended(start(**environment))
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_ray_job_submit_as_printed_trains_the_job(start, place, folder, tmp_path):
    """As the dry run prints it, typed by hand."""
    steps = ("--set", "train.steps=4", "--set", f"checkpoint.path={tmp_path}/run")
    _, out, err = ended(start("--dry-run", "--json", *steps))
    assert err == ""
    by_hand = shlex.split(json.loads(out)["by_hand"])
    done = subprocess.run(by_hand, cwd=folder, env=place.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"finished: 4 steps committed in {tmp_path}/run" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("changed", "says"),
    [({}, "of the cluster at"), ({"RAY_AUTH_TOKEN_PATH": "/dev/null"}, "Put the cluster's token into")],
)
def test_the_notice_agent_needs_the_token_too(place, changed, says):
    """It speaks to the head as any other client; this one has room for workers, so it may be drained."""
    found = subprocess.run(
        [sys.executable, "-m", "planner.cli", "notice-agent", "--dry-run", "--address", place.head],
        env={**place.environment, "PLANNER_METADATA_ENDPOINT": "http://127.0.0.1:1", **changed},
        capture_output=True,
        text=True,
        check=True,
    )
    cloud, node, *_ = found.stdout.splitlines()
    assert cloud.startswith("cloud   none at http://127.0.0.1:1")
    assert says in node
