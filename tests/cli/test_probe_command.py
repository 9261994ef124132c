"""`planner probe` on this machine: what it prints and refuses, and that it leaves nothing."""

import json
import signal
import socket
import subprocess
import sys

import pytest
from events import ended, wait_for

from planner.store.storage import Storage


@pytest.fixture
def place(tmp_path):
    """A folder with a file in it."""
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "mine").write_text("here before")
    return folder


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_it_says_what_was_measured_and_what_to_pass_on(cli, place):
    """Each line has a unit. Nothing stays at the path."""
    answer = cli("probe", "runs", "--size", "1")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == f"storage at {place}, 1 node: {socket.gethostname()}"
    before, _, rate = lines[-1].partition("--storage-gbps ")
    assert before == "For planner plan: "
    assert float(rate.split()[0]) > 0  # two rates stand there if the store was not steady
    for what, unit in (("write  ", "GB/s"), ("read ", "GB/s"), ("put if absent ", "ms"), ("loopback ", "GB/s")):
        (line,) = [line for line in lines if line.startswith(what)]
        assert unit in line
    assert names(place) == ["mine"]


def test_json_of_a_url(cli):
    """Also with `--json`, stdout has one document."""
    Storage("memory://probe-command").write("mine", b"here before")
    found = json.loads(cli("probe", "memory://probe-command", "--size", "1", "--json").out)
    assert found["path"] == "memory://probe-command"
    assert found["storage_gbps"] == pytest.approx(found["figures"][0]["median"], rel=0.01)
    assert Storage("memory://probe-command").names("") == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([""], 2, "PATH is empty. Write a folder or a URL"),
        (["missing"], 1, "missing: no such folder. Make or mount it, or name one that exists"),
        (["runs/mine"], 1, "mine: no such folder"),
        (["nonsense://bucket"], 1, "no file system is known for nonsense://"),
        (["runs", "--size", "1000000"], 1, "1 file of 1.0 TB do not fit, because "),
        (["runs", "--size", "-1"], 2, "--size"),
        (["runs", "--address", "127.0.0.1:1"], 1, "no Ray cluster at 127.0.0.1:1"),
        ([], 2, "PATH"),
    ],
)
def test_what_cannot_be_measured_is_refused(cli, place, arguments, code, says):
    """One message, and nothing stays."""
    answer = cli("probe", *arguments)
    assert (answer.code, answer.out) == (code, "")
    assert says in answer.err
    assert "Traceback" not in answer.err
    assert names(place) == ["mine"]


@pytest.mark.process
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(place, how):
    """While a file is written."""
    command = [sys.executable, "-m", "planner.cli", "probe", str(place)]
    probe = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: list(place.glob("probe-*/0-0*")) or probe.poll() is not None)
    assert probe.poll() is None, probe.communicate()
    probe.send_signal(how)
    code, out, err = ended(probe)
    assert (code, out) == (130, ""), err
    assert "Traceback" not in err
    assert names(place) == ["mine"]
