"""`planner schema`: what a job file may say, for editors and scripts."""

import typer

from planner.files.schema import schema_text


def schema() -> None:
    """Print the job file's JSON Schema. `planner schema > job.schema.json` puts it where a job's first line looks."""
    typer.echo(schema_text(), nl=False)
