"""One Ray cluster of three nodes for all dispatch tests, on loopback."""

import os
import sys
from pathlib import Path

import pytest
from live_runs import TEST_TIMINGS

from planner.dispatch.connection import connected
from planner.dispatch.launch import set_environment
from planner.local_cluster.embedded import EmbeddedCluster, NodeShape


@pytest.fixture
def cluster(shared_cluster):
    """Three nodes of one CPU, whatever the last test did; the test process is the driver, in its main thread."""
    while len(shared_cluster.nodes()) < 3:
        shared_cluster.add_node()
    return shared_cluster


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
