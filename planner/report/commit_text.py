"""The size of a job's commits, as text and as keys of JSON."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from planner.base.disk import size_text
from planner.base.text import about, counted
from planner.job import AdamW, Job, Optimizer, RMSprop
from planner.plan.commit_size import COPIES, COPIES_ON_OWN_NODE, CommitSize, NotKnown, most_copies

if TYPE_CHECKING:  # it imports what connects to a cluster, which a plan does not need
    from planner.runner.dry_run import Forecast

NodeWorkers = Mapping[int, int]
"""world size -> the workers on the node that has the most of them"""


def state_text(job: Job, size: CommitSize) -> str:
    """`4.7 MB: 394,080 trained parameters in float32, with AdamW state`."""
    optimizer = f", with {_name(job.train.optimizer)} state" if size.optimizer.like_parameter else ""
    return f"{size_text(size.state_bytes)}: {size.shapes.num_parameters:,} trained parameters in float32{optimizer}"


def _name(optimizer: Optimizer) -> str:
    if isinstance(optimizer, AdamW):
        return "AdamW"
    return "RMSprop" if isinstance(optimizer, RMSprop) else "SGD momentum"


def durable_text(size: CommitSize, storage_gbps: float) -> str:
    """`a commit is durable after about 12 s at 0.5 GB/s`."""
    return f"a commit is durable after {about(size.commit_s(storage_gbps))} at {storage_gbps:g} GB/s"


def plan_lines(
    job: Job,
    size: CommitSize | NotKnown,
    world_sizes: Sequence[int],
    storage_gbps: float | None,
    node_workers: NodeWorkers | None = None,
) -> list[str]:
    """The lines of `planner plan` about commits: the state, the largest worker's part, and the time to write it.

    Args:
        job: the job.
        size: of its commits.
        world_sizes: the counts in the table. The lines name the least and the greatest.
        storage_gbps: GB (10^9 bytes) per second that the storage takes, or None for no line about time.
        node_workers: the workers on the fullest node for each count, if the cluster is known.
    """
    if isinstance(size, NotKnown):
        return [f"state not known: {size.reason}"]
    ends = sorted({min(world_sizes), max(world_sizes)})
    parts = [f"{size_text(size.worker_bytes(count))} at {count} GPU{'' if count == 1 else 's'}" for count in ends]
    lines = [
        f"state {state_text(job, size)}",
        f"per worker at most {', '.join(parts)}, and host memory for {_copies_text(job)}",
    ]
    if node_workers is not None:
        most = max(_node_copies_bytes(job, size, count, node_workers[count]) for count in world_sizes)
        lines.append(f"host memory for copies: at most {size_text(most)} on a node")
    return [*lines, *([] if storage_gbps is None else [durable_text(size, storage_gbps)])]


def _copies_text(job: Job) -> str:
    most = _most_copies(job)
    return "a copy of that" if most == 1 else f"up to {most} copies of that (checkpoint.memory)"


def _most_copies(job: Job) -> int:
    return most_copies(in_memory=job.checkpoint.memory != "off")


def _node_copies_bytes(job: Job, size: CommitSize, world_size: int, node_workers: int) -> int:
    """Bytes of all copies on a node with `node_workers` of the workers, at most.

    An on-demand node of a floor may have two copies of every worker's state.
    """
    copies = _most_copies(job)
    needed = copies * size.node_bytes(world_size, node_workers)
    is_floor = job.workers.floor > 0 and copies > COPIES_ON_OWN_NODE and node_workers < world_size
    return max(needed, COPIES_ON_OWN_NODE * size.node_bytes(world_size, world_size)) if is_floor else needed


def dry_run_lines(job: Job, ahead: "Forecast") -> list[str]:
    """The lines of a dry run about commits at its first world size."""
    size, count = ahead.commits, ahead.plan.world_size
    if isinstance(size, NotKnown):
        return [f"not known: {size.reason}"]
    needed = _node_copies_bytes(job, size, count, ahead.node_workers)
    copy = f"host memory for copies: at most {size_text(needed)}"
    if ahead.available_bytes is None:
        copy += " on a node"
    else:
        copy += f" on this machine, where {size_text(ahead.available_bytes)} are available"
    return [
        state_text(job, size),
        f"at most {size_text(size.worker_bytes(count))} per worker on {counted(count, 'worker')}",
        copy if ahead.copies_fit == _most_copies(job) else f"{copy}. That is too little: {_goes_on(job, ahead)}",
        *([] if ahead.storage_gbps is None else [durable_text(size, ahead.storage_gbps)]),
    ]


def _goes_on(job: Job, ahead: "Forecast") -> str:
    """How a run goes on for which not all copies fit."""
    lacking = min(copies for copies in COPIES if ahead.copies_fit < copies <= _most_copies(job))
    return f"training would go on {COPIES[lacking]}"


def commit_keys(
    size: CommitSize | NotKnown, world_size: int, storage_gbps: float | None, node_workers: int | None = None
) -> dict[str, object]:
    """The keys of JSON about commits at one world size.

    Sizes that are not known are null, and `state_unknown` says why. `commit_s` is null without a rate.
    `node_state_bytes` is there if the cluster is known: `node_workers` workers on its fullest node.
    """
    on_a_node = [] if node_workers is None else ["node_state_bytes"]
    if isinstance(size, NotKnown):
        unknown = dict.fromkeys(["state_bytes", "worker_state_bytes", *on_a_node, "commit_s"])
        return {**unknown, "state_unknown": size.reason}
    return {
        "state_bytes": size.state_bytes,
        "worker_state_bytes": size.worker_bytes(world_size),
        **{key: size.node_bytes(world_size, node_workers or 1) for key in on_a_node},
        "commit_s": None if storage_gbps is None else size.commit_s(storage_gbps),
        "state_unknown": "",
    }
