"""Where a run trains: on a cluster that is there, or on a local one that it starts."""

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

from planner.base.text import counted
from planner.errors import UserError
from planner.job import Job, Workers, batch_sizes, workers_of
from planner.job.compute import gpus_alone
from planner.job.resource_names import hint
from planner.local_cluster.embedded import EmbeddedCluster, NodeShape
from planner.plan.revise import useful_workers
from planner.runner.display import Progressing, Say, no_progress

MOST_NODES = 64
"""the most logical nodes of a local cluster"""


@dataclass(frozen=True, kw_only=True)
class Local:
    """A local Ray cluster, which the run starts."""

    nodes: int = 0
    """logical nodes, or 0 for as many as the run uses, at most one per core or GPU"""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Ray cluster that is there already."""

    address: str


Where = Local | Cluster


def where(address: str, nodes: int) -> Where:
    """The cluster at `address`, or with an empty one a local cluster."""
    return Cluster(address=address) if address else Local(nodes=nodes)


@dataclass(frozen=True, kw_only=True)
class LocalShape:
    """The shape of a job's local cluster: one node per worker, or with real GPUs one node that has them all."""

    num_workers: int
    """workers that it has room for"""
    gpus: int
    """GPUs of this machine that the job uses, or 0 on the CPU"""
    workers: Workers
    unused: str = ""
    """how many of the workers the run uses, and why not all. Empty if it uses all"""

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
        """The text about a machine without a GPU for a job that asks for one, and about odd resources, or empty."""
        texts = [
            f"workers.resources.{name} is a custom resource, which the local cluster makes up: {text}"
            for name in self.workers.resources
            if (text := hint(name))
        ]
        if self.workers.gpus and not self.gpus:
            lacks = f"workers.gpus is {self.workers.gpus:g} and this machine has no GPU"
            texts.insert(0, f"{lacks}. The workers train on the CPU")
        return ". ".join(texts)


def local_cluster(job: Job, nodes: int) -> LocalShape:
    """The shape of the job's local cluster, with `nodes` nodes, or with real GPUs at most one place for each.

    With 0 it has as many as the run uses: at most one per GPU, or one for each `workers.cpus` cores. If those are too
    few for `workers.min`, one per core.

    Raises:
        UserError: it has fewer nodes than `workers.min`, or more than `MOST_NODES`, or no GPU for what needs one.
    """
    if not 0 <= nodes <= MOST_NODES:
        raise UserError(f"nodes is {nodes}. Write 1 to {MOST_NODES}, or 0 for as many as the run uses")
    gpus = _num_gpus() if job.workers.gpus else 0
    if not gpus and (needs := gpus_alone(job)):
        raise UserError(f"{needs.setting} needs GPUs, and this machine has none. Write {needs.instead}")
    most = min(nodes or gpus or _cpu_places(job.workers), gpus or MOST_NODES, MOST_NODES)
    if most < job.workers.min:
        raise UserError(_too_few(job.workers, most, gpus, nodes))
    used = useful_workers(batch_sizes(job), workers_of(job), most)
    count = most if nodes else used
    unused = _unused(job, count, used) if used < count else ""
    return LocalShape(num_workers=count, unused=unused, gpus=min(gpus, count), workers=job.workers)


def _cpu_places(workers: Workers) -> int:
    """How many workers this machine's cores are enough for. At least one, and `workers.min` if each has a core.

    Ray only counts the cores of a node. Workers that share theirs train slower.
    """
    cores = os.cpu_count() or 1
    return max(1, cores // math.ceil(max(workers.cpus, 1)), min(workers.min, cores))


def _too_few(workers: Workers, most: int, gpus: int, nodes: int) -> str:
    """Why the local cluster is too small for `workers.min`, and what to do."""
    has = counted(gpus, "GPU") if gpus else counted(os.cpu_count() or 1, "core")
    why = "" if most in {nodes, MOST_NODES} else f" ({has})"
    can_have_more = workers.min <= (gpus or MOST_NODES)
    more = f", or write planner run --nodes {workers.min}" if can_have_more else ""
    return (
        f"workers.min is {workers.min}, and the local cluster has {counted(most, 'place')}{why}. "
        f"Write a workers.min of at most {most}{more}"
    )


def _unused(job: Job, count: int, used: int) -> str:
    """How many of `count` places the run uses, and why not more."""
    most = workers_of(job).most
    if used < min(count, most):
        why = f"{used} are as fast as {min(count, most)}"
    elif job.batch.global_batch == most:
        why = f"batch.global is {most}"
    else:
        why = f"workers.max is {most}"
    return f"of which the run uses {used} ({why})"


@contextlib.contextmanager
def embedded(local: LocalShape, say: Say, progress: Progressing = no_progress) -> Iterator[EmbeddedCluster]:
    """A context with the started local cluster, which is closed at the end.

    Raises:
        RunError: the cluster does not start.
    """
    if local.warning:
        say(f"warning: {local.warning}")
    room = f"starting a local Ray cluster with room for {counted(local.num_workers, 'worker')}"
    say(", ".join(filter(None, (room, local.unused))))
    num_nodes = local.num_workers // local.workers_per_node
    with progress("Ray's head and nodes started") as started:
        cluster = EmbeddedCluster(num_nodes=num_nodes, shape=local.shape, say=say, progress=started)
        cluster.start()
    with contextlib.closing(cluster):
        yield cluster


def _num_gpus() -> int:
    import torch  # takes seconds, and a job without GPUs does not need it

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
