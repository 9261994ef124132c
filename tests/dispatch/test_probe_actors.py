"""`planner probe` on a real cluster of three nodes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from events import ended, wait_for

from planner.errors import PlannerError, RunError, StoreError
from planner.local_cluster.environment import driver_environment
from planner.probe.figures import MB
from planner.probe.measure import measure
from planner.probe.node import LOOPBACK, NodeProbe

pytestmark = pytest.mark.ray

TOKEN = b"t" * 32


def on_cluster(place, left):
    from planner.dispatch.probe_actors import on_cluster as nodes_of

    return nodes_of(url=str(place), folder="probe-1", token=TOKEN, warn=left.append)


@pytest.fixture
def place(tmp_path):
    """A folder that all nodes share, with a file in it."""
    (tmp_path / "mine").write_text("here before")
    return tmp_path


def names(folder):
    return [path.name for path in folder.iterdir()]


@pytest.mark.usefixtures("cluster")
def test_all_nodes_are_measured_alone_and_at_once(place):
    """The head offers nothing and is left out. Nothing stays."""
    left = []
    with on_cluster(place, left) as nodes:
        assert len({*nodes.names}) == 3
        assert nodes.addresses == (LOOPBACK,) * 3
        probed = measure(nodes, str(place), size_bytes=MB, say=lambda _text: None)
    assert [figure.what for figure in probed.figures] == [
        *("write", "read", "put if absent", "write a manifest", "write, all at once", "read, all at once"),
        *("network", "network, all at once"),
    ]
    assert probed.together.where == "3 nodes"
    assert f"{', '.join(nodes.names)}: no GPU, so no copies were measured." in probed.notes
    assert (left, names(place)) == ([], ["mine"])


@pytest.mark.usefixtures("cluster")
def test_a_node_that_cannot_see_the_path_is_named(place):
    """The folder is gone when two others look for it, and both are named."""
    left = []
    with on_cluster(place / "gone", left) as nodes:
        (place / "gone").mkdir()
        nodes.ask(NodeProbe.open, {0: ()})
        (place / "gone").rename(place / "elsewhere")
        with pytest.raises(StoreError) as caught:
            nodes.ask(NodeProbe.open, {1: (), 2: ()})
    assert str(caught.value).startswith(f"{nodes.names[1]}, {nodes.names[2]}: {place / 'gone'}: no such folder")


@pytest.mark.slow
def test_a_url_that_no_node_can_open_is_refused(cluster):
    """In one line, and without what Ray says of it."""
    code, out, err = ended(start(cluster, "nonsense://bucket"))
    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert line.endswith("no file system is known for nonsense://. Write a folder, or a URL such as s3://bucket/run")


def test_a_node_that_is_lost_is_named(cluster, place):
    """The others remove what it left in the shared folder."""
    left = []
    with on_cluster(place, left) as nodes:
        nodes.ask(NodeProbe.open, dict.fromkeys(range(3), ()))
        lost = cluster.kill_node()
        (name,) = [name for name in nodes.names if name.endswith(lost[:6])]
        with pytest.raises(RunError) as caught:
            nodes.ask(NodeProbe.write, dict.fromkeys(range(3), (MB, 60.0)))
        assert isinstance(caught.value, PlannerError)
        assert str(caught.value).startswith(f"{name}: the probe ended there")
    assert [text.partition(":")[0] for text in left] == [name]
    assert names(place) == ["mine"]


def start(cluster, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "planner.cli", "probe", *arguments, "--address", cluster.address],
        env={**os.environ, **driver_environment(), "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_the_command_measures_a_cluster(cluster, place):
    """As a user types it."""
    _, out, err = ended(start(cluster, str(place), "--size", "1", "--json"))
    found = json.loads(out)
    assert len(found["nodes"]) == 3, err
    assert found["storage_gbps"] > 0
    assert names(place) == ["mine"]


def test_an_interrupt_leaves_nothing(cluster, place):
    """While a node writes."""
    probe = start(cluster, str(place))
    wait_for(lambda: list(place.glob("probe-*/0-0*")) or probe.poll() is not None)
    assert probe.poll() is None, probe.communicate()
    probe.send_signal(signal.SIGINT)
    code, out, err = ended(probe)
    assert (code, out) == (130, ""), err
    assert "Traceback" not in err
    assert names(place) == ["mine"]
