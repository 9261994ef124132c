"""`planner init`: writes a job file to start from."""

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

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
    try:
        _require_free(file, force=force)
        file.write_text(text, encoding="utf-8")
        schema = file.with_name(SCHEMA_FILE)
        if is_new := force or not schema.exists():
            schema.write_text(schema_text(), encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a NUL, or a name that the file system cannot encode
        raise UserError(f"{file}: cannot write there ({error}). Write another path") from error
    typer.echo(f"wrote {file}" + (f" and {SCHEMA_FILE} (for your editor)" * is_new))
    typer.echo(f"\nsee the plan:  {shlex.join(['planner', 'plan', path])}")
    typer.echo(f"train:         {shlex.join(['planner', 'run', path])}")


def _job_name(stem: str) -> str:
    """A valid job name made of the file's name, so that two files get two runs."""
    return re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("._-")[:63] or "my-run"


def _require_free(file: Path, *, force: bool) -> None:
    """Check that the file may be written.

    Raises:
        UserError: the file exists, or its folder does not.
    """
    if file.is_dir():
        raise UserError(f"{file}: found a folder. Write the path of a file in it, such as {file / 'job.yaml'}")
    if not file.parent.is_dir():
        raise UserError(f"{file}: there is no folder {file.parent}. Make it first, or write another path")
    if file.exists() and not force:
        raise UserError(f"{file}: the file exists. Write another path, or replace it with --force")
