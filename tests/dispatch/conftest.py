"""One Ray cluster of three nodes for all dispatch tests, on loopback."""

import os
import sys
from pathlib import Path

import pytest
from live_runs import TEST_TIMINGS

from planner.dispatch.connection import connected
from planner.dispatch.launch import set_environment
from planner.local_cluster.embedded import EmbeddedCluster, NodeShape


def _made_whole(cluster):
    while len(cluster.nodes()) < 3:
        cluster.add_node()
    return cluster


@pytest.fixture
def cluster(shared_cluster):
    """Three nodes of one CPU, whatever the last test did; the test process is the driver, in its main thread."""
    return _made_whole(shared_cluster)


@pytest.fixture(scope="session")
def resized(shared_cluster, tmp_path_factory):
    """A run at 3, 2 and 3 workers, by notice and by a new node, for all tests that look at such a run."""
    from resized_run import resize

    return resize(_made_whole(shared_cluster), tmp_path_factory.mktemp("resized"))


@pytest.fixture(scope="module")
def resumed(shared_cluster, tmp_path_factory):
    """A folder with a run of six steps on two workers, and of four more on three."""
    from live_runs import fit, make_job

    _made_whole(shared_cluster)
    folder = tmp_path_factory.mktemp("resumed")
    fit(make_job(folder, steps=6, most=2))
    fit(make_job(folder, steps=10, most=3))
    return folder


@pytest.fixture(scope="session")
def ray_environment():
    """Ray reads the token when it is imported: a test that imports it into this process asks for this first."""
    came_late = "ray" in sys.modules
    # Workers unpickle functions of the test modules by name.
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    set_environment(TEST_TIMINGS, embedded=True)
    return came_late


@pytest.fixture(scope="session")
def shared_cluster(ray_environment):
    """Started once: that takes as long as many a test."""
    assert not ray_environment, (
        "something imported ray before its token was there: a module, while tests were collected?"
    )
    with (
        EmbeddedCluster(num_nodes=3, shape=NodeShape(cpus=1)) as embedded,
        connected(embedded.address, verbose=False),
    ):
        yield embedded
