"""`planner audit RUN`: what the run did against what it should have done."""

from typing import Annotated

import typer

from planner.cli.options import JsonOption, console


def audit(
    run: Annotated[str, typer.Argument(metavar="RUN", help="a run's folder or URL", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Re-derive what should have been fed along the committed lineage. Exits with 1 if the run is not clean."""
    from planner.audit import audit as audit_run
    from planner.report.audits import audit_json, phase_table, verdict
    from planner.store.run import Run
    from planner.store.storage import Storage

    result = audit_run(Run(Storage(run)))
    if as_json:
        typer.echo(audit_json(result))
    else:
        out = console()
        out.print(phase_table(result))
        out.print()
        for line in verdict(result):
            out.print(line, markup=False)
    if not result.clean:
        raise typer.Exit(1)
