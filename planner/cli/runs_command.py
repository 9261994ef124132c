"""`planner runs [FOLDER]`: lists the runs in a folder and their states."""

import time
from typing import Annotated

import typer

from planner.cli.options import JsonOption, terminal_width
from planner.errors import UserError
from planner.report.run_table import run_line, run_table, runs_json
from planner.store.survey import survey_folder


def runs(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="the folder or URL that holds the runs")] = "runs",
    as_json: JsonOption = False,
) -> None:
    """List the runs in a folder, the last active run first. Damaged runs are shown as broken. Changes nothing.

    It reads only the ends of files, so it is fast on long runs.
    Example: planner runs s3://bucket/runs
    """
    if not folder:
        raise UserError("FOLDER is empty. Write the folder or URL that holds the runs")
    lines = sorted(map(run_line, survey_folder(folder)), key=lambda line: (-line.active_time_s, line.run))
    if as_json:
        typer.echo(runs_json(lines))
        return
    if not lines:
        typer.echo(f"no runs in {folder}")
        return
    names = [line.run.removeprefix(f"{folder.rstrip('/')}/") for line in lines]
    header, *rows = run_table(lines, names, time.time(), terminal_width())
    typer.secho(header, bold=True)
    typer.echo("\n".join(rows))
