"""The local Ray cluster that a job gets if no address is given."""

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

from planner.base.text import counted
from planner.base.wait_reports import reminded
from planner.errors import UserError
from planner.job import Job, Workers
from planner.local_cluster.embedded import EmbeddedCluster, NodeShape
from planner.runner.display import Say

MOST_NODES = 64
"""the most logical nodes of a local cluster"""
# On an idle machine, a head and eight nodes start faster than this.
_SLOW_START_S = 30.0


@dataclass(frozen=True, kw_only=True)
class LocalShape:
    """The shape of a job's local cluster: one node per worker, or with real GPUs one node that has them all."""

    num_workers: int
    gpus: int
    """GPUs of this machine that the job uses, or 0 on the CPU"""
    workers: Workers

    @property
    def shape(self) -> NodeShape:
        """The resources of each node."""
        scale, workers = self.workers_per_node, self.workers
        return NodeShape(
            # Rounded up, because Ray starts no node with half a CPU.
            cpus=math.ceil(max(workers.cpus, 1) * scale),
            gpus=workers.gpus * scale,
            resources={name: math.ceil(amount * scale) for name, amount in workers.resources.items()},
        )

    @property
    def workers_per_node(self) -> int:
        """How many workers fit on each node."""
        return self.num_workers if self.gpus else 1

    @property
    def warning(self) -> str:
        """The text about a machine without a GPU for a job that asks for one, or empty."""
        if self.gpus or not self.workers.gpus:
            return ""
        return f"workers.gpus is {self.workers.gpus:g} and this machine has no GPU. The workers train on the CPU"


def local_cluster(job: Job, nodes: int) -> LocalShape:
    """The shape of the job's local cluster, with `nodes` nodes, or 0 for one per core or GPU.

    Raises:
        UserError: it has fewer nodes than `workers.min`, or more than `MOST_NODES`.
    """
    if not 0 <= nodes <= MOST_NODES:
        raise UserError(f"nodes is {nodes}. Write 1 to {MOST_NODES}, or 0 for one per core or GPU")
    workers, gpus = job.workers, _num_gpus() if job.workers.gpus else 0
    count = nodes or min(workers.max, gpus or os.cpu_count() or 1)
    if count < workers.min:
        raise UserError(f"workers.min is {workers.min}, and the local cluster has {count}. Write --nodes {workers.min}")
    return LocalShape(num_workers=count, gpus=gpus, workers=workers)


@contextlib.contextmanager
def embedded(local: LocalShape, say: Say) -> Iterator[EmbeddedCluster]:
    """A context with the started local cluster, which is closed at the end.

    Raises:
        RunError: the cluster does not start.
    """
    if local.warning:
        say(f"warning: {local.warning}")
    say(f"starting a local Ray cluster with room for {counted(local.num_workers, 'worker')}")
    cluster = EmbeddedCluster(num_nodes=local.num_workers // local.workers_per_node, shape=local.shape, say=say)
    with reminded(say, "the local Ray cluster is still starting", _SLOW_START_S):
        cluster.start()
    with contextlib.closing(cluster):
        yield cluster


def _num_gpus() -> int:
    import torch  # takes seconds, and a job without GPUs does not need it

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
