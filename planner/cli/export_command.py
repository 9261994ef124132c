"""`planner export RUN`: writes a commit as a folder that plain transformers or peft loads."""

import dataclasses
import json
from typing import Annotated, Literal

import typer

from planner.base.disk import absolute_url, expanded
from planner.base.text import counted
from planner.cli.activity import doing, progress_bar
from planner.cli.options import JsonOption
from planner.errors import UserError
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="a run's folder or URL", show_default=False)],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FOLDER", help="a new folder for the model", show_default=False)
    ],
    step: Annotated[str, typer.Option(metavar="N", help="the step of the commit, or newest")] = "newest",
    dtype: Annotated[Literal["fp32", "bf16"], typer.Option(help="number format of the exported weights")] = "fp32",
    merge: Annotated[bool, typer.Option("--merge", help="merge adapters into the weights")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a commit in the Hugging Face layout (safetensors, configuration, tokenizer), or adapters in peft's.

    The commit's digests are checked first. The folder appears only when it is complete.
    Example: planner export runs/my-run -o models/my-model
    """
    if not run or not output:
        raise UserError(f"{'--output' if run else 'RUN'} is empty. Write a folder")
    if step != "newest" and not step.isdecimal():
        raise UserError(f"--step {step}: not a step. Write the step of a commit, or newest")
    with doing(f"reading {run}"):
        from planner.train.export import commit_at  # torch
        from planner.train.export import export as export_commit

        found = RunFolder(Storage(absolute_url(run)))
        manifest = commit_at(found, None if step == "newest" else int(step))
    target = expanded(output).absolute()
    with progress_bar("tensors written") as progress:
        done = export_commit(found, manifest, target, dtype=dtype, merge=merge, progress=progress)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(done), indent=1))
        return
    size = f"{counted(done.tensors, 'tensor')}, {done.bytes / 1e6:.1f} MB, {done.dtype}"
    typer.echo(f"step {done.step} in {output}: {done.what}, {size}")
