"""`planner show RUN`: one run, from what lies in its folder."""

import time
from typing import Annotated

import typer

from planner.base.disk import full_url
from planner.cli.options import JsonOption
from planner.errors import StoreError, UserError
from planner.report.run_table import detail_json, detail_text, run_detail
from planner.store.storage import Storage
from planner.store.survey import MOST_GENERATIONS, is_run, survey


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="a run's folder or URL", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Show how a run stands: its state, its generations, what happened last, and what resumes it. Reads only."""
    if not run:
        raise UserError("RUN is empty; write a run's folder or URL")
    url = full_url(run)
    if not is_run(Storage(url)):
        raise StoreError(f"{run}: no run here; `planner runs FOLDER` lists the runs in a folder")
    detail = run_detail(survey(url, MOST_GENERATIONS))
    typer.echo(detail_json(detail) if as_json else "\n".join(detail_text(detail, time.time())))
