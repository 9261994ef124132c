"""`planner plan --cluster FILE`: the counts that a cluster file reaches, and the nodes behind each."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.cluster.reach import Mix, Reach
from planner.errors import PlanError
from planner.files import read_cluster
from planner.job import Job, workers_of
from planner.report.clusters import cluster_line, no_room
from planner.report.layout_text import spans


@dataclass(frozen=True, kw_only=True)
class OnCluster:
    """What a cluster makes of a job's plans."""

    counts: list[int]
    """those to show"""
    mixes: Mapping[int, Mix]
    """count -> its nodes"""
    line: str
    """the cluster in words"""
    notes: tuple[str, ...]
    """what the table does not show, in words"""


def on_cluster(file: str, job: Job, asked: list[int] | None) -> OnCluster:
    """The counts of `asked`, or of the job's own range, that the cluster in the file can reach.

    Raises:
        ClusterError: the file is none, or wrong.
        PlanError: the cluster can reach none of them.
    """
    reach = Reach(cluster=read_cluster(file), taken=job.workers.taken)
    counts = _reached(job, asked, reach)
    return OnCluster(
        counts=counts,
        mixes={count: reach.mix(count) for count in counts},
        line=cluster_line(reach),
        notes=tuple(_notes(job, asked, counts, reach)),
    )


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
    raise PlanError(f"{wanted}, and cluster {name} has room for {room}; change its numbers of nodes, or {key}")


def _notes(job: Job, asked: list[int] | None, counts: list[int], reach: Reach) -> list[str]:
    notes = []
    if missing := sorted({*(asked or [])} - {*counts}):
        notes.append(f"Out of the cluster's reach: {spans(missing)}.")
    if not job.workers.gpus and any(group.resources.get("GPU") for group in reach.cluster.groups):
        notes.append(
            "workers.gpus is 0: workers take CPUs, and these nodes' GPUs stay idle; --set workers.gpus=1 takes them."
        )
    most, room = workers_of(job).most, reach.counts[-1]
    if room > most:
        notes.append(
            f"The cluster has room for {room} workers; this job takes at most {most} (workers.max, batch.global)."
        )
    return notes
