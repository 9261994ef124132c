"""`planner schema`: prints the JSON Schema of job files, for editors and scripts."""

import typer

from planner.files.schema import schema_text
from planner.job.data_registry import DATA_KINDS
from planner.job.objective_registry import OBJECTIVES
from planner.job.tracking import TRACKERS


def schema() -> None:
    """Print the JSON Schema of the job file, with which editors complete and check job files.

    The first line of a job file names it.
    Example: planner schema > job.schema.json
    """
    OBJECTIVES.require_all()
    DATA_KINDS.require_all()
    TRACKERS.require_all()
    typer.echo(schema_text(), nl=False)
