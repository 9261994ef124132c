"""`planner runs [FOLDER]`: lists the runs in a folder and their states."""

import time
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.activity import doing
from planner.cli.options import JsonOption, print_heading, terminal_width
from planner.errors import UserError
from planner.report.run_table import run_line, run_table, runs_json
from planner.store.survey import survey_folder

DEFAULT_FOLDER = "runs"


def runs(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="the folder or URL that holds the runs")
    ] = DEFAULT_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """List the runs in a folder, the last active run first. Damaged runs are shown as broken. Changes nothing.

    It reads only the ends of files, so it is fast on long runs.
    Example: planner runs /data/runs
    """
    if not folder:
        raise UserError("FOLDER is empty. Write the folder or URL that holds the runs")
    is_fresh = folder == DEFAULT_FOLDER and not Path(folder).exists()
    with doing(f"reading {folder}"):
        found = [] if is_fresh else survey_folder(folder)
    lines = sorted(map(run_line, found), key=lambda line: (-line.active_time_s, line.run))
    if as_json:
        typer.echo(runs_json(lines))
        return
    if not lines:
        typer.echo("no runs yet: `planner run JOB` makes the first" if is_fresh else f"no runs in {folder}")
        return
    names = [line.run.removeprefix(f"{folder.rstrip('/')}/") for line in lines]
    header, *rows = run_table(lines, names, time.time(), terminal_width())
    print_heading(header)
    typer.echo("\n".join(rows))
