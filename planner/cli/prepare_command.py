"""`planner prepare SOURCE OUTPUT`: text or jsonl into one token file, which a run opens at once at any size."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from planner.base.text import counted
from planner.cli.options import JsonOption
from planner.data.prepare_tokens import prepare as prepare_file
from planner.errors import DataError, UserError, printable
from planner.job import JsonlData, TextData
from planner.runner.signals import ended_like_ctrl_c


class Kind(StrEnum):
    """What SOURCE is, in the words of the job file."""

    text = "text"
    jsonl = "jsonl"


def prepare(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="what data.path takes: a file, a folder or a glob")],
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="the token file to write")],
    kind: Annotated[Kind | None, typer.Option(help="text, unless SOURCE ends with .jsonl: then say which")] = None,
    field: Annotated[str, typer.Option(help="jsonl: the key that holds the text")] = "text",
    force: Annotated[bool, typer.Option("--force", help="replace OUTPUT if it is there")] = False,
    as_json: JsonOption = False,
) -> None:
    """Turn text or jsonl into one token file for data.kind: tokens. The samples stay the same, at every context."""
    data = _data(source, kind, field)
    if not output:
        raise UserError("OUTPUT is empty; write a file's name")
    path = Path(output)
    began_s = time.monotonic()
    with ended_like_ctrl_c(), _progress_bar() as progress:
        try:
            header = prepare_file(data, path, replace=force, progress=progress)
        except DataError as error:
            # In a job the same mistakes have keys.
            text = str(error).removeprefix("data.path: ").replace("set data.field", "set --field")
            raise DataError(text) from error
    if as_json:
        found = {"path": output, "kind": header.kind, "tokens": header.num_tokens, "rows": header.num_rows}
        found |= {"dtype": header.dtype, "bytes": header.num_bytes, "sha256": header.sha256}
        typer.echo(json.dumps(found, indent=1))
        return
    rows = f"{counted(header.num_rows, 'row')}, " if header.kind == "rows" else ""
    shown = printable(output)  # a name on Linux is bytes, not always UTF-8
    typer.echo(f"{shown}: {rows}{header.num_tokens} tokens (bytes), in {time.monotonic() - began_s:.1f} s")
    typer.echo(f"in a job:  data: {{kind: tokens, path: {shown}}}")


def _data(source: str, kind: Kind | None, field: str) -> TextData | JsonlData:
    if not source:
        raise UserError("SOURCE is empty; write a file, a folder or a glob")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{source}: not a name in UTF-8; rename it, or write the folder") from error
    if not field:
        raise UserError("--field is empty; write the key that holds the text")
    if kind is None and source.endswith(".jsonl"):
        raise UserError(f"{source}: write --kind jsonl (each line's text is a row) or --kind text (all of it is text)")
    if kind is Kind.jsonl:
        return JsonlData(kind="jsonl", path=source, field=field)
    if field != "text":
        raise UserError(f"--field {field}: text has no fields; leave it out, or write --kind jsonl")
    return TextData(kind="text", path=source)


@contextmanager
def _progress_bar() -> Iterator[Callable[[int, int], None]]:
    """On stderr where that is a terminal."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    shown = bool(sys.stderr and sys.stderr.isatty())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
