"""`planner audit RUN`: what the run did against what it should have done."""

from typing import Annotated

import typer

from planner.cli.options import JsonOption
from planner.errors import UserError


def audit(
    run: Annotated[str, typer.Argument(metavar="RUN", help="a run's folder or URL", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Re-derive what should have been fed along the committed lineage. Exits with 1 if the run is not clean."""
    from planner.audit import audit as audit_run
    from planner.report.audits import audit_json, phase_table, verdict
    from planner.store.run import Run
    from planner.store.storage import Storage

    if not run:
        raise UserError("RUN is empty; write a run's folder or URL")
    result = audit_run(Run(Storage(run)))
    if as_json:
        typer.echo(audit_json(result))
    else:
        header, *rows = phase_table(result)
        typer.secho(header, bold=True)
        typer.echo("\n".join((*rows, "", *verdict(result))))
    if not result.clean:
        raise typer.Exit(1)
