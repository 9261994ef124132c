"""`planner plan JOB`: the whole table beforehand, from the very values that the workers will use."""

from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.counts import parse_counts
from planner.cli.options import JobArgument, JsonOption, SetOption, terminal_width
from planner.errors import PlanError
from planner.job import Job
from planner.plan import worker_range

if TYPE_CHECKING:
    from planner.cluster.reach import Reach


def plan(
    job: JobArgument,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="COUNTS", help="such as 1-16, 7 or 3,5,7; by default the job's workers.min to max"),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="a `ray up` or KubeRay file: only the counts that it reaches, and its nodes"),
    ] = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how the job's global batch is split at each GPU count. Starts nothing."""
    from planner.files import read_job
    from planner.job import batch_sizes
    from planner.plan import choose
    from planner.report.plans import plan_json, plan_table

    spec = read_job(job, set_ or [])
    asked = None if gpus is None else parse_counts(gpus)
    reach = None if cluster is None else _reach(cluster, spec)
    counts = _counts(spec, asked) if reach is None else _reached(spec, asked, reach)
    plans = [choose(batch_sizes(spec), count) for count in counts]
    mixes = None if reach is None else {count: reach.mix(count) for count in counts}
    if as_json:
        typer.echo(plan_json(plans, mixes))
        return
    typer.echo("\n".join(_heading(spec, reach)))
    header, *rows = plan_table(plans, terminal_width(), mixes)
    typer.secho(f"\n{header}", bold=True)
    typer.echo("\n".join(rows))
    for note in filter(None, (_outside(spec, counts), *_notes(spec, asked, counts, reach))):
        typer.echo(f"\n{note}")


def _reach(cluster: str, job: Job) -> "Reach":
    from planner.cluster.reach import Reach
    from planner.files import read_cluster

    return Reach(cluster=read_cluster(cluster), taken=job.workers.taken)


def _heading(job: Job, reach: "Reach | None") -> list[str]:
    from planner.job.lengths import conversions
    from planner.report.clusters import cluster_line

    batch = job.batch
    first = f"{job.name}: global batch {batch.global_batch}, at most {batch.max_micro} in a micro-batch"
    return [first, *conversions(job), *([] if reach is None else [cluster_line(reach)])]


def _range(job: Job) -> tuple[int, int]:
    """The least and the most workers that `planner run` would use."""
    workers = worker_range(
        workers_min=job.workers.min, workers_max=job.workers.max, global_batch=job.batch.global_batch
    )
    return workers.least, workers.most


def _counts(job: Job, asked: list[int] | None) -> list[int]:
    return list(range(job.workers.min, job.workers.max + 1)) if asked is None else asked


def _reached(job: Job, asked: list[int] | None, reach: "Reach") -> list[int]:
    """The counts to show: those of `asked`, or of the job's own range, that the cluster can reach.

    Raises:
        PlanError: there is none.
    """
    from planner.report.clusters import no_room
    from planner.report.text import spans

    if not reach.counts:
        raise PlanError(no_room(reach))
    least, most = _range(job)
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


def _outside(job: Job, counts: list[int]) -> str:
    """Counts that `planner run` would never use, in words."""
    least, most = _range(job)
    if min(counts) >= least and max(counts) <= most:
        return ""
    return (
        f"This job runs on {least} to {most} workers (workers.min, workers.max, batch.global); other rows are what-if."
    )


def _notes(job: Job, asked: list[int] | None, counts: list[int], reach: "Reach | None") -> list[str]:
    """What the table of a cluster does not show, in words."""
    from planner.report.text import spans

    if reach is None:
        return []
    notes = []
    if missing := sorted({*(asked or [])} - {*counts}):
        notes.append(f"Out of the cluster's reach: {spans(missing)}.")
    if not job.workers.gpus and any(group.resources.get("GPU") for group in reach.cluster.groups):
        notes.append(
            "workers.gpus is 0: workers take CPUs, and these nodes' GPUs stay idle; --set workers.gpus=1 takes them."
        )
    most, room = _range(job)[1], reach.counts[-1]
    if room > most:
        notes.append(
            f"The cluster has room for {room} workers; this job takes at most {most} (workers.max, batch.global)."
        )
    return notes
