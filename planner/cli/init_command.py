"""`planner init`: a job file to begin with."""

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
    force: Annotated[bool, typer.Option("--force", help="replace what is there")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the file instead of writing it")] = False,
) -> None:
    """Write a commented job that runs as it is, and the schema that editors check it by."""
    if not path:
        raise UserError("PATH is empty; write the path of the job file to make")
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
    except (OSError, ValueError) as error:  # ValueError: a NUL, or what the file system cannot encode
        raise UserError(f"{file}: cannot write there ({error}); write another path") from error
    typer.echo(f"wrote {file}" + (f", and beside it {SCHEMA_FILE}, by which editors complete and check it" * is_new))
    typer.echo(f"\nsee the plan:  {shlex.join(['planner', 'plan', path])}")
    typer.echo(f"train:         {shlex.join(['planner', 'run', path])}")


def _job_name(stem: str) -> str:
    """A name that a job may have, from the file's: runs of two files stay apart."""
    return re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("._-")[:63] or "my-run"


def _require_free(file: Path, *, force: bool) -> None:
    """Check that the file may be written.

    Raises:
        UserError: something is there, or there is no folder to write into.
    """
    if file.is_dir():
        raise UserError(f"{file}: found a directory; write the path of a file in it, such as {file / 'job.yaml'}")
    if not file.parent.is_dir():
        raise UserError(f"{file}: there is no folder {file.parent}; make it first, or write another path")
    if file.exists() and not force:
        raise UserError(f"{file}: it is there already; write another path, or replace it with --force")
