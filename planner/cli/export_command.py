"""`planner export RUN`: a commit as a folder that plain transformers or peft loads."""

import dataclasses
import json
from typing import Annotated, Literal

import typer

from planner.base.disk import expanded, full_url
from planner.base.text import counted
from planner.cli.options import JsonOption, progress_bar
from planner.errors import UserError
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="a run's folder or URL", show_default=False)],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FOLDER", help="a new folder for the model", show_default=False)
    ],
    step: Annotated[str, typer.Option(metavar="N", help="the commit's step, or newest")] = "newest",
    dtype: Annotated[Literal["fp32", "bf16"], typer.Option(help="of the weights in the files")] = "fp32",
    merge: Annotated[bool, typer.Option("--merge", help="adapters: put them into the weights")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a commit in the Hugging Face layout: safetensors, configuration, tokenizer. Adapters: in peft's.

    The commit's digests are checked first, and the folder is there as a whole or not at all.
    """
    if not run or not output:
        raise UserError(f"{'--output' if run else 'RUN'} is empty; write a folder")
    if step != "newest" and not step.isdecimal():
        raise UserError(f"--step {step}: write a commit's step, or newest")
    from planner.train.export import commit_at  # torch
    from planner.train.export import export as export_commit

    found = RunFolder(Storage(full_url(run)))
    manifest = commit_at(found, None if step == "newest" else int(step))
    target = expanded(output).absolute()
    with progress_bar("tensors written") as progress:
        done = export_commit(found, manifest, target, dtype=dtype, merge=merge, progress=progress)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(done), indent=1))
        return
    size = f"{counted(done.tensors, 'tensor')}, {done.bytes / 1e6:.1f} MB, {done.dtype}"
    typer.echo(f"step {done.step} in {output}: {done.what}, {size}")
