"""`planner run JOB`: trains on a Ray cluster or on an embedded local one. The same command resumes."""

import os
import shlex
from typing import Annotated

import typer

from planner.base.text import as_submitted
from planner.cli.options import (
    RESUME_VARIABLE,
    AcceptOption,
    DryRunOption,
    JobArgument,
    JsonOption,
    SetOption,
    StorageOption,
    address_option,
    console,
    require_rate,
    terminal_width,
)
from planner.cli.terminal import display_on
from planner.errors import UserError
from planner.job import HfModel, Job
from planner.provenance.identity import parse_accept
from planner.report.dry_run_text import dry_run_json, dry_run_text
from planner.report.run_table import detail_json, run_detail
from planner.runner import execute
from planner.runner.dry_run import forecast
from planner.runner.execute import RunResult
from planner.runner.job_argument import read_job
from planner.runner.local import MOST_NODES, where
from planner.runner.run_job import resume_command
from planner.runner.start import plan_start
from planner.store.survey import MOST_GENERATIONS, survey


def run(
    job: JobArgument,
    address: Annotated[str, address_option("a local cluster starts")] = "",
    nodes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=MOST_NODES,
            help="logical nodes of the local cluster",
            show_default="as many as the run uses",
        ),
    ] = 0,
    set_: SetOption = None,
    accept: AcceptOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="show Ray's own messages")] = False,
    dry_run: DryRunOption = False,
    storage_gbps: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train the job, or resume its run from the newest commit.

    Ctrl-C makes all workers commit and ends the run (exit code 130). The same command resumes it.
    With --json, stdout has what `planner show RUN --json` prints at the end, and stderr has the rest.
    Example: planner run job.yaml --set train.steps=400
    """
    require_rate(storage_gbps)
    if storage_gbps is not None and not dry_run:
        raise UserError("--storage-gbps only changes what a dry run shows. Add --dry-run, or remove it")
    fields = parse_accept(accept or [])
    spec = read_job(job, set_ or [])
    out = console(stderr=as_json)
    display = display_on(out, verbose=verbose)
    again = resume_command(job, address=address, nodes=nodes, overrides=set_ or [], accept=accept or [])
    start = plan_start(
        spec,
        where(address, nodes),
        accept=fields,
        display=display,
        resume_command=os.environ.get(RESUME_VARIABLE) or again,
        file=job,
        command="run",
    )
    if start.finished:
        display.say(f"{start.url}: {start.finished_text}, nothing to do")
        _print_json(start.url, wanted=as_json)
        return
    if dry_run:
        with display.doing(f"checking the start{f' at {address}' if address else ''}"):
            ahead = forecast(start, storage_gbps=storage_gbps)
        typer.echo(dry_run_json(start, ahead) if as_json else "\n".join(dry_run_text(start, ahead, terminal_width())))
        return
    result = execute.run(start, display)
    display.say(closing_text(start.job, result))
    _print_json(start.url, wanted=as_json)  # also after an interrupt, because a script needs the run's state
    if not result.finished:
        raise typer.Exit(130)


def _print_json(url: str, *, wanted: bool) -> None:
    if wanted:
        typer.echo(detail_json(run_detail(survey(url, MOST_GENERATIONS))))


def closing_text(job: Job, result: RunResult) -> str:
    """How the run stands when its driver ends, and the next commands."""
    if not result.finished:
        return f"interrupted: {result.committed}. Resume with: {result.resume_command}"
    code = ["--code", as_submitted(job.data.path)] if job.is_own else []
    again = shlex.join(["planner", "audit", result.url, *code])
    more = ""
    if isinstance(job.model, HfModel):
        # Adapters over the weights of an earlier run belong to no folder.
        merge = ["--merge"] if job.model.lora is not None and job.after is not None else []
        export = ["planner", "export", result.url, "-o", f"models/{job.name}", *merge]
        more = f"\nExport it for transformers: {shlex.join(export)}"
    return f"finished: {result.total_steps} steps committed in {result.url}. Check it: {again}{more}"
