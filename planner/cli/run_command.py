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
from planner.report.dry_run_text import dry_run_json, dry_run_text
from planner.report.run_table import detail_json, run_detail
from planner.runner.accept import parse_accept
from planner.runner.dry_run import check_start
from planner.runner.execute import RunResult, execute
from planner.runner.job_argument import read_job
from planner.runner.local import MOST_NODES
from planner.runner.prepare import prepare
from planner.runner.run_job import resume_command
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
    display = display_on(out)
    prepared = prepare(spec, fields, display, check_data=not address, file=job, command="run")
    if prepared.finished:
        display.say(f"{prepared.url}: {prepared.finished_text}, nothing to do")
        _print_json(prepared.url, wanted=as_json)
        return
    if dry_run:
        with display.doing(f"checking the start{f' at {address}' if address else ''}"):
            dry = check_start(prepared, display.warn, address=address, nodes=nodes, storage_gbps=storage_gbps)
        typer.echo(dry_run_json(dry) if as_json else "\n".join(dry_run_text(prepared.job, dry, terminal_width())))
        return
    again = resume_command(job, address=address, nodes=nodes, overrides=set_ or [], accept=accept or [])
    result = execute(
        prepared,
        display,
        opening=f"{spec.name}: {prepared.resume_text} in {prepared.url}",
        address=address,
        nodes=nodes,
        verbose=verbose,
        resume_command=os.environ.get(RESUME_VARIABLE) or again,
    )
    display.say(closing_text(prepared.job, result))
    _print_json(prepared.url, wanted=as_json)  # also after an interrupt, because a script needs the run's state
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
    export = ["planner", "export", result.url, "-o", f"models/{job.name}"]
    more = f"\nExport it for transformers: {shlex.join(export)}" if isinstance(job.model, HfModel) else ""
    return f"finished: {result.total_steps} steps committed in {result.url}. Check it: {again}{more}"
