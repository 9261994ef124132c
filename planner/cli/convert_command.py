"""`planner convert RECIPE`: another system's recipe as a job of ours, or a batch as another system takes it."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import terminal_width
from planner.cli.recipe_options import (
    AccelerateOption,
    EnvOption,
    HalosOption,
    MethodOption,
    MicroOption,
    OverridesArgument,
    RecipeArgument,
    check_number,
    options_of,
)
from planner.errors import UserError
from planner.plan.limits import MAX_WORKERS
from planner.recipes import Recipe, job_of, needs_job, read_recipe, rewrite, targets
from planner.report.recipe_table import conversion_lines, rewrite_lines


def convert(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus", metavar="W", help=("the GPU count that the recipe was tuned for; TRL recipes do not say it")
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option("--to", metavar="SYSTEM", help="job, dpo, halos, trl, accelerate, deepspeed or torchtitan"),
    ] = "job",
    at: Annotated[
        int | None,
        typer.Option(
            "--at", metavar="W", help=("with --to SYSTEM: the GPU count to write for; by default that of --gpus")
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="write the job there, not to the terminal")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace what is there")] = False,
    accelerate: AccelerateOption = None,
    method: MethodOption = None,
    halos_batch: HalosOption = None,
    max_micro: MicroOption = None,
    env: EnvOption = None,
) -> None:
    """Turn a recipe of the DPO repository, HALOs, TRL or DeepSpeed into a job, or say its batch to one of those.

    The job goes to stdout and what became of every key to stderr; with -o the job goes to the file. With --to SYSTEM,
    what to type there for exactly the same batch at --at GPUs; where no setting does it, the nearest counts (exit 1).
    """
    known = targets()
    if to not in {"job", *known}:
        raise UserError(f"--to {to}: write job, {', '.join(known[:-1])} or {known[-1]}")
    if to == "job" and at is not None:
        raise UserError("--at W goes with --to SYSTEM: a job is exact at every count; leave it out")
    check_number("--at", at, MAX_WORKERS)
    options = options_of(
        gpus=gpus,
        gpus_option="--gpus",
        accelerate=accelerate,
        method=method,
        halos_batch=halos_batch,
        max_micro=max_micro,
        env=env,
        is_for_job=to == "job",
    )
    found = read_recipe(recipe, overrides or [], options)
    if to != "job":
        if needs_job(found, to):
            found = read_recipe(recipe, overrides or [], replace(options, is_for_job=True))
        _print_rewrite(found, to, at or gpus or found.gpus)
        return
    if found.foreign is None:
        raise UserError(f"{recipe}: found a job of planner's already; write --to SYSTEM, or planner plan {recipe}")
    _, text = job_of(found)
    _write(found, text, output, force=force)


def _print_rewrite(found: Recipe, to: str, gpus: int | None) -> None:
    if gpus is None:
        raise UserError(f"--at W: say for how many GPUs to write it, such as --to {to} --at 8")
    made = rewrite(found, to, gpus)
    typer.echo("\n".join(rewrite_lines(found, made, gpus, terminal_width())))


def _write(found: Recipe, text: str, output: str | None, *, force: bool) -> None:
    lines = conversion_lines(found, terminal_width())
    if output is None:
        typer.echo(text, nl=False)
        typer.echo("\n".join(lines), err=True)
        return
    file = Path(output)
    try:
        if file.exists() and not force:
            raise UserError(f"{output}: it is there already; write another path, or replace it with --force")
        file.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a NUL, or what the file system cannot encode
        raise UserError(f"{output}: cannot write there ({error}); write another path") from error
    typer.echo("\n".join(lines))
    typer.echo(f"\nwrote {output}")
    typer.echo(f"see the plan:  {shlex.join(['planner', 'plan', output, '--gpus', '1-16'])}")
