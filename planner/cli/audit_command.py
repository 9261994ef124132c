"""`planner audit RUN`: compares what the run did with what it should have done."""

import typer

from planner.cli.activity import progress_bar
from planner.cli.options import CodeOption, JsonOption, RunArgument, print_heading
from planner.report.audits import audit_json, phase_table, verdict
from planner.runner.audit_run import audit as audit_run
from planner.store.lease import driver_state, newest_lease
from planner.store.storage import Storage


def audit(
    run: RunArgument,
    code: CodeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check that each step of a run used exactly its samples and no record was altered. Exits with 1 if not.

    It needs the run's folder and the data, no GPU and no cluster.
    Example: planner audit runs/my-run
    """
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
