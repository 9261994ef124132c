"""The cluster of all dispatch tests, and this process's connection to it."""

from contextlib import ExitStack

import pytest

from planner.dispatch.connection import connected
from planner.local_cluster.embedded import EmbeddedCluster, NodeShape

_NODES = 3

FAILED = pytest.StashKey[bool]()
"""whether a test has failed since these nodes were started"""


class SharedCluster(EmbeddedCluster):
    """Three nodes of one CPU. This process is connected while they run."""

    def __init__(self):
        super().__init__(num_nodes=_NODES, shape=NodeShape(cpus=1))
        self._connection = ExitStack()

    def start(self):
        """Start the nodes, and connect."""
        super().start()
        self._connection.enter_context(connected(self.address, verbose=False))

    def close(self):
        """Disconnect first: a driver whose cluster is gone looks for it for a minute."""
        self._connection.close()
        super().close()

    def start_anew(self):
        """Other processes, with nothing left of what ran before."""
        self.close()
        self.start()

    def whole(self):
        """This cluster, with as many nodes as at the start."""
        while len(self.nodes()) < _NODES:
            self.add_node()
        return self


def whole(shared, stash):
    """The shared cluster with three nodes: a new one if a test has failed since the last call, by pytest's stash."""
    if stash.get(FAILED, False):
        stash[FAILED] = False
        shared.start_anew()
    return shared.whole()
