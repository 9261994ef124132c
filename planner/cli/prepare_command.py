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
from planner.data.tokens import Header
from planner.errors import DataError, UserError, printable_lines
from planner.job import HfModel, JsonlData, TextData
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
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="a model's folder or hub name. Its tokenizer makes the tokens. Without: bytes"
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="branch, tag or commit of a MODEL on the hub")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace OUTPUT if it exists")] = False,
    as_json: JsonOption = False,
) -> None:
    """Turn text or jsonl into one token file for data.kind: tokens. The file serves every context.

    Without --tokenizer each byte is one token, for model.kind gpt. With it, each file of text or row of jsonl becomes a
    document of the model's tokens, for model.kind hf.
    Example: planner prepare 'corpus/*.txt' corpus.tokens --tokenizer models/tiny
    """
    data, model = _data(source, kind, field), _model(tokenizer, revision)
    if not output:
        raise UserError("OUTPUT is empty. Write the name of a file")
    path = Path(output)
    began_s = time.monotonic()
    with ended_like_ctrl_c(), progress_bar("bytes read", _columns) as progress:
        try:
            header = prepare_file(data, path, model=model, replace=force, progress=progress)
        # These errors name keys of a job. The command has options instead.
        except NoTextField as error:
            raise DataError(f"{error.problem}. Set --field or correct the line") from error
        except DataError as error:
            raise DataError((error.problem or str(error)).replace("model.path", "--tokenizer", 1)) from error
    if as_json:
        found = {"path": output, "kind": header.kind, "tokens": header.num_tokens, "rows": header.num_rows}
        found |= {"dtype": header.dtype, "bytes": header.num_bytes, "sha256": header.sha256}
        found |= {"tokenizer": header.tokenizer, "vocabulary": header.vocabulary, "empty": header.num_empty}
        typer.echo(json.dumps(found, indent=1))
        return
    shown = printable_lines(output)  # a name on Linux is bytes, not always UTF-8
    typer.echo(f"{shown}: {_content_text(header)}, in {time.monotonic() - began_s:.1f} s")
    typer.echo(f"in a job:  data: {{kind: tokens, path: {shown}}}")


def _content_text(header: Header) -> str:
    if header.kind != "documents":
        rows = f"{counted(header.num_rows, 'row')}, " if header.kind == "rows" else ""
        return f"{rows}{header.num_tokens} tokens (bytes)"
    left_out = f" ({counted(header.num_empty, 'empty one')} left out)" if header.num_empty else ""
    documents = f"{counted(header.num_rows, 'document')}{left_out}"
    return f"{documents}, {header.num_tokens} tokens ({header.dtype}, {header.vocabulary} ids)"


def _model(tokenizer: str | None, revision: str | None) -> HfModel | None:
    """The model whose tokenizer makes the tokens. None: bytes."""
    if tokenizer is None:
        if revision is not None:
            raise UserError(f"--revision {revision}: it belongs to --tokenizer. Add that option, or leave this one out")
        return None
    if not tokenizer or revision == "":
        raise UserError(f"--{'revision' if tokenizer else 'tokenizer'} is empty. Write a name")
    # The context plays no part: it cuts when the file is read.
    return HfModel(kind="hf", path=tokenizer, revision=revision, context=2)


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
