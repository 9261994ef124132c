"""`planner fit RUN`: fits the step model to what a run has measured, and writes a rates file."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from planner.base.disk import absolute_url
from planner.cli.activity import progress_bar
from planner.cli.new_file import require_free, write_new_file
from planner.cli.options import ForceOption, RunArgument, terminal_width
from planner.errors import UserError
from planner.files.rates_file import rates_text
from planner.report.fit_text import fit_lines
from planner.runner.fit_run import fit_run


def fit(
    run: RunArgument,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="the rates file to write")
    ] = "rates.yaml",
    force: ForceOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what was found, and write nothing")] = False,
) -> None:
    """Fit seconds per step to what a run has measured, and write a rates file for `planner plan --rates`.

    It also works while the run is going on, and does not change it.
    Example: planner fit runs/my-run -o rates.yaml
    """
    if not output:
        raise UserError("--output is empty. Write the path of the rates file")
    file = Path(output)
    if not dry_run:
        require_free(file, force=force)
    with progress_bar("generations read") as progress:
        found = fit_run(absolute_url(run), progress)
    typer.echo("\n".join(fit_lines(found, terminal_width())))
    if dry_run:
        return
    write_new_file(file, rates_text(found.rates), force=force)
    typer.echo(f"\nwrote {file}. Now: {shlex.join(['planner', 'plan', 'JOB', '--rates', output])}")
