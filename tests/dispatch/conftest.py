"""One Ray cluster of three nodes for all dispatch tests, on loopback. After a test that failed there is a new one."""

import os
import sys
from functools import partial
from pathlib import Path

import pytest
from live_runs import TEST_TIMINGS
from shared_cluster import FAILED, SharedCluster, whole

from planner.dispatch.launch import set_environment


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Note that a test failed. It may have left a cluster that does not answer, or a run that holds its nodes."""
    report = yield
    if report.failed and item.get_closest_marker("ray"):
        item.config.stash[FAILED] = True
    return report


@pytest.fixture
def cluster(whole_cluster):
    """Three nodes of one CPU, whatever the last test did; the test process is the driver, in its main thread."""
    return whole_cluster()


@pytest.fixture(scope="session")
def whole_cluster(shared_cluster, pytestconfig):
    """`whole_cluster()` -> the shared cluster with three nodes: a new one if a test has failed since the last call."""

    return partial(whole, shared_cluster, pytestconfig.stash)


@pytest.fixture(scope="session")
def resized(whole_cluster, tmp_path_factory):
    """A run at 3, 2 and 3 workers, by a notice and by a new node, for all tests that look at such a run."""
    from resized_run import resize

    return resize(whole_cluster(), tmp_path_factory.mktemp("resized"))


@pytest.fixture(scope="session", autouse=True)
def ray_environment():
    """Ray reads the token when it is imported, and any of these tests may be the first to import it."""
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
    with SharedCluster() as shared:
        yield shared
