"""What only a dry run shows of a start: room, the first plan, the size of a commit. A run does not wait for them."""

from dataclasses import dataclass

from planner.base.host_memory import available_bytes
from planner.base.text import counted
from planner.dispatch import connection, launch
from planner.dispatch.resources import rented_nodes
from planner.job import Job, batch_sizes, workers_of
from planner.job.compute import ComputeRule, compute_rule
from planner.plan import Plan, make_plan, workers_on_node
from planner.plan.commit_size import COPIES, CommitSize, NotKnown, most_copies
from planner.plan.revise import useful_workers
from planner.runner.commit_size import commit_size
from planner.runner.execute import room_warning
from planner.runner.local import LocalShape
from planner.runner.start import Start


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """How a start would go on."""

    cluster: str
    """where it would run, as text"""
    waits: str
    """what it would wait for, or empty if it would begin at once"""
    plan: Plan
    """of the first world size"""
    commits: CommitSize | NotKnown
    """the size of a commit"""
    node_workers: int
    """workers on the node that has the most of them, at the first world size"""
    available_bytes: int | None
    """memory that is available on this machine, if the job would run here"""
    copies_fit: int
    """how many copies of each worker's state fit into `available_bytes`, at most those of the job (`most_copies`). All
    of them if that is not known"""
    compute: ComputeRule | None
    """how workers compute. None: the user's own loop decides it"""
    storage_gbps: float | None
    """what the user says that the storage takes, in 10^9 bytes per second"""


def forecast(start: Start, *, storage_gbps: float | None = None) -> Forecast:
    """How a start would go on. It asks another cluster for its nodes, and may build the model without its weights.

    Args:
        start: of a run that is not finished.
        storage_gbps: what the storage takes, in 10^9 bytes per second. None if not known.

    Raises:
        PlannerError: the cluster does not answer, as a run would find out at this point.
    """
    job, local = start.job, start.local
    # All nodes of a local cluster are this machine, so its workers share one node.
    cluster, waits, rooms = (_text(local), "", [local.num_workers]) if local else _at(job, start.address)
    sizes, workers = batch_sizes(job), workers_of(job)
    plan = make_plan(sizes, useful_workers(sizes, workers, workers.nearest(sum(rooms))))
    commits = commit_size(job, may_build=True)
    node_workers = min(max(1, *rooms), plan.world_size)
    return Forecast(
        cluster=cluster,
        waits=waits,
        plan=plan,
        commits=commits,
        node_workers=node_workers,
        available_bytes=available_bytes() if local else None,
        copies_fit=_copies_that_fit(job, local, commits, node_workers, plan.world_size),
        compute=compute_rule(job, on_gpu=bool(local.gpus if local else job.workers.gpus)),
        storage_gbps=storage_gbps,
    )


def _copies_that_fit(
    job: Job, local: LocalShape | None, commits: CommitSize | NotKnown, node_workers: int, world_size: int
) -> int:
    """How many copies fit into the memory here. On the CPU, the state itself takes as much as one more."""
    most = most_copies(in_memory=job.checkpoint.memory != "off")
    if isinstance(commits, NotKnown) or local is None:
        return most
    here = available_bytes() // max(commits.node_bytes(world_size, node_workers), 1) - (not local.gpus)
    return next((copies for copies in COPIES if copies <= min(here, most)), 0)


def _text(local: LocalShape) -> str:
    """The local cluster, as text."""
    on = counted(local.gpus, "GPU") if local.gpus else "CPU"
    room = f"local Ray cluster, {counted(local.num_workers, 'worker')} ({on})"
    return ", ".join(filter(None, (room, local.unused)))


def _at(job: Job, address: str) -> tuple[str, str, list[int]]:
    """The cluster at the address and what the run would wait for, as texts, and the workers that fit on each node."""
    launch.set_environment(launch.CLUSTER, embedded=False)
    with connection.connected(address, verbose=False):
        found = rented_nodes()
    rooms = [workers_on_node(node, job.workers.taken) for node, _ in found]
    text = f"{address}: {counted(len(found), 'node')} with room for {counted(sum(rooms), 'worker')}"
    return text, room_warning(job, found), rooms
