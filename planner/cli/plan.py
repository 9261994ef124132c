"""`planner plan JOB`: the whole table beforehand, from the very values that the workers will use."""

from typing import Annotated

import typer

from planner.cli.options import JobArgument, JsonOption, SetOption, terminal_width
from planner.errors import UserError
from planner.job import MAX_WORKERS, Job


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


def parse_counts(text: str) -> list[int]:
    """`1-4,7` -> [1, 2, 3, 4, 7]: in the order written, each once.

    Raises:
        UserError: not of that form, or outside of 1 to 65536.
    """
    counts: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        low = _count(first, text)
        high = _count(last, text) if dash else low
        if low > high:
            raise UserError(f"--gpus {text[:60]}: {part.strip()} runs backwards; write {high}-{low}")
        counts.update(dict.fromkeys(range(low, high + 1)))
    return list(counts)


def _count(text: str, whole: str) -> int:
    # isascii: int() would take other scripts' digits, too. Six digits hold every count there is.
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MAX_WORKERS):
        found = f"{text[:20]!r} is not a count from 1 to {MAX_WORKERS}" if text else "a count is missing"
        raise UserError(f"--gpus {whole[:60]!r}: {found}; write 1-16, 7 or 3,5,7")
    return int(text)


def _outside(job: Job, counts: list[int]) -> str:
    """Counts that `planner run` would never use, in words."""
    least, most = job.workers.min, min(job.workers.max, job.batch.global_batch)
    if min(counts) >= least and max(counts) <= most:
        return ""
    return (
        f"This job runs on {least} to {most} workers (workers.min, workers.max, batch.global); other rows are what-if."
    )
