"""`planner audit RUN`: what the run did against what it should have done."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import JsonOption, progress_bar
from planner.errors import UserError

if TYPE_CHECKING:
    from planner.store.records import Manifest
    from planner.store.storage import Storage


def audit(
    run: Annotated[str, typer.Argument(metavar="RUN", help="a run's folder or URL", show_default=False)],
    code: Annotated[
        str, typer.Option(metavar="FILE", help="the Python file whose dataset() a run with a loop of your own used")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Re-derive what should have been fed along the committed lineage. Exits with 1 if the run is not clean."""
    from planner.provenance.audit import audit as audit_run
    from planner.report.audits import audit_json, phase_table, verdict
    from planner.store.lease import newest_lease
    from planner.store.run import Run
    from planner.store.storage import Storage
    from planner.store.survey import driver_state

    if not run:
        raise UserError("RUN is empty; write a run's folder or URL")
    storage = Storage(run)
    with progress_bar("steps audited") as progress:
        result = audit_run(Run(storage), progress, _tensor_digests, code=code)
    driver = driver_state(newest_lease(storage))
    if as_json:
        typer.echo(audit_json(result))
    else:
        header, *rows = phase_table(result)
        typer.secho(header, bold=True)
        typer.echo("\n".join((*rows, "", *verdict(result, driver))))
    if not result.clean:
        raise typer.Exit(1)


def _tensor_digests(storage: "Storage", manifest: "Manifest") -> Mapping[str, str]:
    """Asked for only where there is a certificate: it needs torch."""
    from planner.train.checkpoints.checkpoint import read_digests

    return read_digests(storage, manifest)
