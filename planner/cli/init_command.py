"""`planner init`: writes a job file to start from."""

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.new_file import write_new_file
from planner.errors import UserError
from planner.files.schema import SCHEMA_FILE, schema_text
from planner.files.template import template_job


def init(
    path: Annotated[str, typer.Argument(metavar="PATH", help="the job file to write")] = "job.yaml",
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the file instead of writing it")] = False,
) -> None:
    """Write a commented job file that runs as it is, and the JSON Schema for editors.

    The job trains a tiny model on the CPU within a minute.
    Example: planner init job.yaml
    """
    if not path:
        raise UserError("PATH is empty. Write the path of the new job file")
    file = Path(path)
    text = template_job(_job_name(file.stem))
    if dry_run:
        typer.echo(text, nl=False)
        return
    write_new_file(file, text, force=force)
    schema = file.with_name(SCHEMA_FILE)
    if is_new := force or not schema.exists():
        write_new_file(schema, schema_text(), force=True)
    typer.echo(f"wrote {file}" + (f" and {SCHEMA_FILE} (for your editor)" * is_new))
    typer.echo(f"\nsee the plan:  {shlex.join(['planner', 'plan', path])}")
    typer.echo(f"train:         {shlex.join(['planner', 'run', path])}")


def _job_name(stem: str) -> str:
    """A valid job name made of the file's name, so that two files get two runs."""
    return re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("._-")[:63] or "my-run"
