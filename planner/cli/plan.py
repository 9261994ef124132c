"""`planner plan JOB`: the whole table beforehand, from the very values that the workers will use."""

from typing import Annotated

import typer

from planner.cli.counts import parse_counts
from planner.cli.options import JobArgument, JsonOption, SetOption, terminal_width
from planner.job import Job


def plan(
    job: JobArgument,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="COUNTS", help="such as 1-16, 7 or 3,5,7; by default the job's workers.min to max"),
    ] = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how the job's global batch is split at each GPU count. Starts nothing."""
    from planner.files import read_job
    from planner.plan import Facts, batch_sizes, choose

    spec = read_job(job, set_ or [])
    counts = list(range(spec.workers.min, spec.workers.max + 1)) if gpus is None else parse_counts(gpus)
    plans = [choose(batch_sizes(spec), count, Facts()) for count in counts]
    if as_json:
        from planner.report.plans import plan_json

        typer.echo(plan_json(plans))
        return
    from planner.report.plans import plan_table

    batch = spec.batch
    typer.echo(f"{spec.name}: global batch {batch.global_batch}, at most {batch.max_micro} in a micro-batch\n")
    header, *rows = plan_table(plans, terminal_width())
    typer.secho(header, bold=True)
    typer.echo("\n".join(rows))
    if outside := _outside(spec, counts):
        typer.echo(f"\n{outside}")


def _outside(job: Job, counts: list[int]) -> str:
    """Counts that `planner run` would never use, in words."""
    least, most = job.workers.min, min(job.workers.max, job.batch.global_batch)
    if min(counts) >= least and max(counts) <= most:
        return ""
    return (
        f"This job runs on {least} to {most} workers (workers.min, workers.max, batch.global); other rows are what-if."
    )
