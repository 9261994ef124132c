"""`planner audit RUN`: compares what the run did with what it should have done."""

from typing import Annotated

import typer

from planner.cli.activity import progress_bar
from planner.cli.options import JsonOption, print_heading
from planner.errors import UserError
from planner.report.audits import audit_json, phase_table, verdict
from planner.runner.audit_run import audit as audit_run
from planner.store.lease import driver_state, newest_lease
from planner.store.storage import Storage


def audit(
    run: Annotated[str, typer.Argument(metavar="RUN", help="a run's folder or URL", show_default=False)],
    code: Annotated[
        str, typer.Option(metavar="FILE", help="for a run with your own training loop: the Python file with dataset()")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Check that each step of a run used exactly its samples and no record was altered. Exits with 1 if not.

    It needs the run's folder and the data, no GPU and no cluster.
    Example: planner audit runs/my-run
    """
    if not run:
        raise UserError("RUN is empty. Write a run's folder or URL")
    with progress_bar("steps audited") as progress:
        result = audit_run(run, code=code, progress=progress)
    driver = driver_state(newest_lease(Storage(run)))
    if as_json:
        typer.echo(audit_json(result))
    else:
        header, *rows = phase_table(result)
        print_heading(header)
        typer.echo("\n".join((*rows, "", *verdict(result, driver))))
    if not result.clean:
        raise typer.Exit(1)
