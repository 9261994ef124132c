"""`planner schema`: what a job file may say, for editors and scripts."""

import typer

from planner.files.schema import schema_text
from planner.job.objective_registry import require_all_objectives


def schema() -> None:
    """Print the job file's JSON Schema. `planner schema > job.schema.json` puts it where a job's first line looks."""
    require_all_objectives()
    typer.echo(schema_text(), nl=False)
