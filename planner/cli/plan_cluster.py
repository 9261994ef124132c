"""`planner plan --cluster FILE`: the counts that the cluster of a file can reach, and the nodes of each count."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.base.text import enumerated
from planner.cluster.reachable_counts import Mix, Reach
from planner.errors import PlanError
from planner.files.cluster_file import read_cluster
from planner.job import Job, workers_of
from planner.plan.gpu_kinds import gpu_kind
from planner.report.clusters import cluster_line, floor_note, no_room, usable_groups
from planner.report.text_columns import spans

_MOST_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class OnCluster:
    """The counts of a job that a cluster can reach."""

    counts: list[int]
    """the counts to show"""
    mixes: Mapping[int, Mix]
    """count -> its nodes"""
    workers_on_a_node: Mapping[int, int]
    """count -> the workers on the node that has the most of them"""
    line: str
    """the cluster as text"""
    gpus: tuple[str, ...]
    """the kinds of its GPUs, the one with the least memory first. Empty if they are not known"""
    gpu_line: str
    """what the file says of its GPUs. Empty if that is nothing"""
    notes: tuple[str, ...]
    """what the table does not show, one text each"""

    @property
    def gpu(self) -> str:
        """The kind of GPU with the least memory. Empty if it is not known."""
        return self.gpus[0] if self.gpus else ""

    @property
    def only_gpu(self) -> str:
        """The kind of all of its GPUs. Empty if there are several, or it is not known."""
        return self.gpu if len(self.gpus) == 1 else ""


def on_cluster(file: str, job: Job, asked: list[int] | None) -> OnCluster:
    """Find the counts that the cluster in a file can reach.

    Args:
        file: the path of a `ray up` or KubeRay file.
        job: the job.
        asked: the counts to look at. None takes the job's own range.

    Raises:
        ClusterError: the file is wrong, or is no cluster file.
        PlanError: the cluster can reach none of the counts.
    """
    reach = Reach(cluster=read_cluster(file), taken=job.workers.taken)
    counts = _reached(job, asked, reach)
    mixes = {count: reach.mix(count) for count in counts}
    room = reach.workers_on_a_node
    gpus, gpu_line = _gpus(job, reach)
    return OnCluster(
        counts=counts,
        mixes=mixes,
        workers_on_a_node={count: min(max(room[name] for _, name in mixes[count].nodes), count) for count in counts},
        line=cluster_line(reach),
        gpus=gpus,
        gpu_line=gpu_line,
        notes=tuple(_notes(job, asked, counts, reach)),
    )


def _gpus(job: Job, reach: Reach) -> tuple[tuple[str, ...], str]:
    """The kinds of the GPUs that the job's workers get, and a line that says where they are from.

    Both are empty if the workers take no GPUs, or the file says nothing. The kinds also if it does not say all of them.
    """
    groups = usable_groups(reach)
    found = [group.gpu for group in groups if group.gpu is not None]
    if not job.workers.gpus or not found:
        return (), ""
    if len(found) < len(groups):
        names = [group.name for group in groups if group.gpu is None]
        return (), f"GPUs of {enumerated(_few(names))}: not known. --gpu NAME shows what fits"
    kinds = sorted({kind for gpu in found for kind in gpu.kinds}, key=lambda kind: gpu_kind(kind).memory_bytes)
    values: dict[str, dict[str, None]] = {}
    for gpu in found:
        values.setdefault(gpu.key, {})[gpu.value] = None
    sources = "; ".join(f"{key} {enumerated(_few(list(those)))}" for key, those in values.items())
    least = f". Memory below is that of {kinds[0]}, the least" if len(kinds) > 1 else ""
    return tuple(kinds), f"GPUs: {enumerated(kinds, 'or')} ({sources}){least}"


def _few(names: list[str]) -> list[str]:
    more = len(names) - _MOST_NAMED
    return names if more <= 0 else [*names[:_MOST_NAMED], f"{more} more"]


def _reached(job: Job, asked: list[int] | None, reach: Reach) -> list[int]:
    if not reach.counts:
        raise PlanError(no_room(reach))
    workers = workers_of(job)
    least, most = workers.least, workers.most
    usable = reach.within(least, most)
    possible = {*reach.counts, *usable}
    counts = usable if asked is None else [count for count in asked if count in possible]
    if counts:
        return counts
    if asked is None:
        wanted, key = f"this job runs on {least} to {most} workers", "workers.min and workers.max"
    else:
        wanted, key = f"you asked for {spans(sorted(asked))}", "--gpus"
    name, room = reach.cluster.name, spans(reach.counts)
    raise PlanError(f"{wanted}, and cluster {name} has room for {room}. Change its numbers of nodes, or {key}")


def _notes(job: Job, asked: list[int] | None, counts: list[int], reach: Reach) -> list[str]:
    notes = []
    if missing := sorted({*(asked or [])} - {*counts}):
        notes.append(f"Out of the cluster's reach: {spans(missing)}.")
    if not job.workers.gpus and any(group.resources.get("GPU") for group in reach.cluster.groups):
        notes.append(
            "workers.gpus is 0: workers take CPUs, and these nodes' GPUs stay idle. To use them: --set workers.gpus=1."
        )
    if note := floor_note(reach, job.workers.floor):
        notes.append(note)
    most, room = workers_of(job).most, reach.counts[-1]
    if room > most:
        notes.append(
            f"The cluster has room for {room} workers. This job takes at most {most} (workers.max, batch.global)."
        )
    return notes
