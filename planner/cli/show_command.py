"""`planner show RUN`: shows one run, from its folder alone."""

import time
from typing import Annotated

import typer

from planner.base.disk import absolute_url
from planner.cli.activity import doing
from planner.cli.options import JsonOption, RunArgument, terminal_width
from planner.errors import StoreError, printable
from planner.report.run_table import detail_json, detail_text, run_detail
from planner.store.code_failure import read_failure
from planner.store.run_folder import no_run_error
from planner.store.storage import Storage
from planner.store.survey import MOST_GENERATIONS, is_run, survey


def show(
    run: RunArgument,
    code_traceback: Annotated[
        bool, typer.Option("--traceback", help="print the whole traceback of the last error of your own code, and end")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how a run stands: its state, generations, last events and the command that resumes it. Changes nothing.

    It also works while the run is going on.
    Example: planner show runs/my-run
    """
    url = absolute_url(run)
    if not is_run(Storage(url)):
        raise no_run_error(run)
    if code_traceback:
        typer.echo(_traceback(url))
        return
    with doing(f"reading {run}"):
        detail = run_detail(survey(url, MOST_GENERATIONS))
    lines = [detail_json(detail)] if as_json else detail_text(detail, time.time(), terminal_width())
    typer.echo("\n".join(lines))


def _traceback(url: str) -> str:
    failure = read_failure(Storage(url))
    if failure is None:
        raise StoreError(f"{url}: no error of your own code is kept in this run. See its events: planner show RUN")
    return "\n".join(map(printable, failure.traceback.splitlines()))
