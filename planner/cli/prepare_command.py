"""`planner prepare SOURCE OUTPUT`: turns text or jsonl into one token file, which a run opens fast at any size."""

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, ProgressColumn, TimeRemainingColumn, TransferSpeedColumn

from planner.base.text import counted
from planner.cli.activity import progress_bar
from planner.cli.options import JsonOption
from planner.data.jsonl import NoTextField
from planner.data.prepare_tokens import prepare as prepare_file
from planner.errors import DataError, UserError, printable_lines
from planner.job import JsonlData, TextData
from planner.runner.signals import ended_like_ctrl_c


class Kind(StrEnum):
    """The kind of SOURCE, named as in the job file's `data.kind`."""

    text = "text"
    jsonl = "jsonl"


def prepare(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="a file, a folder or a glob, as data.path takes it")],
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="the token file to write")],
    kind: Annotated[Kind | None, typer.Option(help="by default text (required if SOURCE ends with .jsonl)")] = None,
    field: Annotated[str, typer.Option(help="jsonl: the key that holds the text")] = "text",
    force: Annotated[bool, typer.Option("--force", help="replace OUTPUT if it exists")] = False,
    as_json: JsonOption = False,
) -> None:
    """Turn text or jsonl into one token file for data.kind: tokens. The samples stay the same at every context.

    Each byte is one token.
    Example: planner prepare 'corpus/*.txt' corpus.tokens
    """
    data = _data(source, kind, field)
    if not output:
        raise UserError("OUTPUT is empty. Write the name of a file")
    path = Path(output)
    began_s = time.monotonic()
    with ended_like_ctrl_c(), progress_bar("bytes read", _columns) as progress:
        try:
            header = prepare_file(data, path, replace=force, progress=progress)
        # These errors name keys of a job. The command has options instead.
        except NoTextField as error:
            raise DataError(f"{error.problem}. Set --field or correct the line") from error
        except DataError as error:
            raise DataError(error.problem or str(error)) from error
    if as_json:
        found = {"path": output, "kind": header.kind, "tokens": header.num_tokens, "rows": header.num_rows}
        found |= {"dtype": header.dtype, "bytes": header.num_bytes, "sha256": header.sha256}
        typer.echo(json.dumps(found, indent=1))
        return
    rows = f"{counted(header.num_rows, 'row')}, " if header.kind == "rows" else ""
    shown = printable_lines(output)  # a name on Linux is bytes, not always UTF-8
    typer.echo(f"{shown}: {rows}{header.num_tokens} tokens (bytes), in {time.monotonic() - began_s:.1f} s")
    typer.echo(f"in a job:  data: {{kind: tokens, path: {shown}}}")


def _data(source: str, kind: Kind | None, field: str) -> TextData | JsonlData:
    if not source:
        raise UserError("SOURCE is empty. Write a file, a folder or a glob")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{source}: the name is not UTF-8. Rename it, or write its folder") from error
    if not field:
        raise UserError("--field is empty. Write the key that holds the text")
    if kind is None and source.endswith(".jsonl"):
        raise UserError(
            f"{source}: the kind is not clear. Write --kind jsonl (each line is a row) or --kind text (plain text)"
        )
    if kind is Kind.jsonl:
        return JsonlData(kind="jsonl", path=source, field=field)
    if field != "text":
        raise UserError(f"--field {field}: text has no fields. Leave --field out, or write --kind jsonl")
    return TextData(kind="text", path=source)


def _columns() -> tuple[ProgressColumn, ...]:
    return (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
