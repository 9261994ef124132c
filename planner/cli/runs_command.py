"""`planner runs [FOLDER]`: every run in a folder, and how it stands."""

import time
from typing import Annotated

import typer

from planner.cli.options import JsonOption, terminal_width
from planner.errors import UserError
from planner.report.run_table import run_line, run_table, runs_json
from planner.store.survey import survey_folder


def runs(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="the folder or URL that runs lie in")] = "runs",
    as_json: JsonOption = False,
) -> None:
    """List the runs in a folder, the one that was active last first. Reads only; damaged ones are shown as broken."""
    if not folder:
        raise UserError("FOLDER is empty; write the folder or URL that runs lie in")
    lines = sorted(map(run_line, survey_folder(folder)), key=lambda line: (-line.active_time_s, line.run))
    if as_json:
        typer.echo(runs_json(lines))
        return
    if not lines:
        typer.echo(f"no runs in {folder}")
        return
    names = [line.run.removeprefix(f"{folder.rstrip('/')}/") for line in lines]
    header, *rows = run_table(lines, names, time.time())
    typer.secho(header, bold=True)
    width = terminal_width()
    for row in rows:
        typer.echo(row if width is None or len(row) <= width else f"{row[: width - 3]}...")
