"""A driver that ends silently, or whose Ray head dies: another process reports what is committed."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from events import EVENT_S

from planner.local_cluster.processes import children
from planner.runner import driver_end
from planner.runner.driver_end import EndedProcess, RayListeners, ended_process

pytestmark = pytest.mark.process

# A driver: its subject and its head as JSON; then it says that it is there, and does what it is told.
DRIVER = """
import contextlib, json, os, sys
from planner.runner.driver_end import DriverWatch, RayListeners, RunSummary
subject, head = json.loads(sys.argv[1])
with DriverWatch(RunSummary(**subject, driver=os.getpid())) as watch, contextlib.ExitStack() as stack:
    if head:
        stack.enter_context(watch.watching(RayListeners(**head)))
    print("there", flush=True)
    for line in sys.stdin:
        if line == "leave\\n":
            break
        if line == "disconnect\\n":
            stack.close()
            print("disconnected", flush=True)
        if line == "end\\n":
            os._exit(1)  # as Ray does from C++
"""


@pytest.fixture
def run(recorded, tmp_path):
    """A run of four steps."""
    shutil.copytree(recorded.run, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def listeners(tmp_path):
    """Stand-ins for a raylet and a GCS."""
    with socket.socket(socket.AF_UNIX) as raylet, socket.create_server(("127.0.0.1", 0)) as gcs:
        raylet.bind(str(tmp_path / "raylet"))
        raylet.listen(100)
        yield raylet, gcs


@pytest.fixture
def start(run):
    """Start a driver of the run under a `DriverWatch`."""
    started = []

    def call(head=None):
        subject = {"url": str(run), "total_steps": 9, "resume_command": "planner run job.yaml"}
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, json.dumps([subject, head])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "there\n"
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate()


def head_of(listeners, *, is_embedded):
    raylet, gcs = listeners
    return {"gcs": f"127.0.0.1:{gcs.getsockname()[1]}", "raylet": raylet.getsockname(), "is_embedded": is_embedded}


def test_a_driver_that_ends_normally_prints_nothing(start, listeners):
    """No process stays behind either: the driver's stderr is closed."""
    process = start(head_of(listeners, is_embedded=True))
    assert process.communicate("leave\n", timeout=EVENT_S) == ("", "")
    assert process.returncode == 0


@pytest.mark.parametrize("end", ["by itself", "killed"])
def test_a_driver_that_ends_silently_is_reported(start, run, end):
    """Ended from C++ or by SIGKILL: the message has what is committed and the command that resumes."""
    process = start()
    if end == "killed":
        process.send_signal(signal.SIGKILL)
    _, err = process.communicate("end\n" if end == "by itself" else None, timeout=EVENT_S)
    assert err == (
        f"planner: this driver was ended from outside (killed, or out of memory): step 4 of 9 is committed in {run}. "
        "Resume with: planner run job.yaml\n"
    )


@pytest.mark.parametrize(("dead", "is_embedded"), [("raylet", True), ("raylet", False), ("gcs", True)])
def test_a_driver_without_its_head_is_ended_with_a_message(start, listeners, run, dead, is_embedded):
    """Exit code 1, before Ray ends the driver. A dead raylet is final on any cluster."""
    head = head_of(listeners, is_embedded=is_embedded)
    process = start(head)
    listeners[["raylet", "gcs"].index(dead)].close()
    assert process.wait(EVENT_S) == 1  # its stdin is open: nobody has told it to end
    _, err = process.communicate(timeout=EVENT_S)
    why = {
        "raylet": "the raylet of this driver's node has died",
        "gcs": f"the head's gcs_server ({head['gcs']}) has died",
    }[dead]
    assert err == f"planner: {why}: step 4 of 9 is committed in {run}. Resume with: planner run job.yaml\n"


@pytest.mark.parametrize("is_embedded", [True, False])
def test_a_killed_driver_is_not_reported_as_a_dead_raylet(start, listeners, is_embedded):
    """A local cluster ends with its driver, perhaps before anybody looks. Another cluster's raylet does not."""
    process = start(head_of(listeners, is_embedded=is_embedded))
    (watch,) = children(process.pid)
    os.kill(watch, signal.SIGSTOP)  # it looks when both have ended
    process.kill()
    process.wait()
    listeners[0].close()
    os.kill(watch, signal.SIGCONT)
    _, err = process.communicate(timeout=EVENT_S)
    assert err.startswith(
        "planner: this driver and its local Ray cluster have ended (killed, or out of memory): step 4 of 9 is committed"
        if is_embedded
        else "planner: the raylet of this driver's node has died: step 4 of 9 is committed"
    )


def test_a_head_that_ends_after_the_driver_has_let_go_is_not_missed(start, listeners):
    """An embedded cluster closes while the driver lives."""
    process = start(head_of(listeners, is_embedded=True))
    process.stdin.write("disconnect\n")
    process.stdin.flush()
    assert process.stdout.readline() == "disconnected\n"
    for listener in listeners:
        listener.close()
    _, err = process.communicate("end\n", timeout=EVENT_S)
    assert err.startswith("planner: this driver was ended from outside")


def test_a_gcs_of_others_may_come_back(start, listeners):
    """Ray waits a minute for it. The message says so, and the driver is not ended."""
    head = head_of(listeners, is_embedded=False)
    process = start(head)
    listeners[1].close()
    assert process.stderr.readline() == (
        f"planner: the head's gcs_server ({head['gcs']}) has died. Ray waits a minute for another one and then ends "
        "this driver\n"
    )
    assert process.poll() is None
    _, err = process.communicate("end\n", timeout=EVENT_S)
    assert err.startswith(f"planner: the head's gcs_server ({head['gcs']}) has died: step 4 of 9 is committed in ")


def test_an_unreadable_folder_still_gets_a_message(start, run):
    """The message still has the command that resumes."""
    (run / "run.json").write_text("torn")
    process = start()
    _, err = process.communicate("end\n", timeout=EVENT_S)
    assert ": what is committed cannot be read now (" in err
    assert err.endswith(". Resume with: planner run job.yaml\n")


def test_if_both_connections_are_lost_the_raylet_is_named():
    """It is the one that cannot come back."""
    head = RayListeners(gcs="host:1", raylet="/socket", is_embedded=False)
    raylet = EndedProcess(description="the raylet of this driver's node has died", is_final=True)
    gcs = EndedProcess(description="the head's gcs_server (host:1) has died", is_final=False)
    assert ended_process(head, lambda _place: True) is None
    assert ended_process(head, lambda _place: False) == raylet
    assert ended_process(head, lambda place: place != "host:1") == gcs


def test_connections_that_end_again_and_again_do_not_keep_it_busy(listeners, monkeypatch):
    """Something between may accept connections and close them. Each second look waits for its time."""
    looks = []

    class Driver:
        head, has_ended = RayListeners(**head_of(listeners, is_embedded=True)), False

        def wait(self, seconds, others=()):
            looks.append((seconds, bool(others)))
            return bool(others)

        def has_left(self):
            return len(looks) == 9

    monkeypatch.setattr(driver_end, "_has_ended", lambda _connection: True)
    assert driver_end._ending(Driver(), print) == ""
    assert looks == [(driver_end._LOOK_S, bool(number % 2)) for number in range(9)]
