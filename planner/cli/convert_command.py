"""`planner convert RECIPE`: turns another system's recipe into a job, or into the settings of a third system."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.new_file import write_new_file
from planner.cli.options import ForceOption, terminal_width
from planner.cli.recipe_options import (
    AccelerateOption,
    EnvOption,
    HalosOption,
    MethodOption,
    MicroOption,
    OverridesArgument,
    RecipeArgument,
    SystemOption,
    check_number,
    options_of,
)
from planner.errors import UserError
from planner.plan.factory import MAX_WORKERS
from planner.recipes import TARGETS, Recipe, job_of, needs_job, read_recipe, rewrite, targets
from planner.recipes.systems import readable
from planner.report.recipe_table import conversion_lines, rewrite_lines


def convert(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus", metavar="W", help=("the GPU count that the recipe was tuned for (TRL recipes do not say it)")
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option("--to", metavar="SYSTEM", help=f"target: {', '.join(['job', *TARGETS])}"),
    ] = "job",
    at: Annotated[
        int | None, typer.Option("--at", metavar="W", help="with --to SYSTEM: its GPU count, by default that of --gpus")
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="the job file to write, instead of stdout")
    ] = None,
    force: ForceOption = False,
    accelerate: AccelerateOption = None,
    method: MethodOption = None,
    system: SystemOption = None,
    halos_batch: HalosOption = None,
    max_micro: MicroOption = None,
    env: EnvOption = None,
) -> None:
    """Make a job from a recipe of TRL, DeepSpeed or another system, or another system's settings (--to).

    It reads {systems}.
    The job goes to stdout and a report on every key to stderr. With -o, the job goes to a file.
    With --to SYSTEM, it prints the settings that train exactly the same batch at --at GPUs.
    If there are none, it names the nearest counts and exits with 1.
    Example: planner convert recipe.yaml --gpus 8 -o mine.yaml
    """
    _refuse_impossible(to, at)
    options = options_of(
        gpus=gpus,
        gpus_option="--gpus",
        accelerate=accelerate,
        method=method,
        system=system,
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
        raise UserError(f"{recipe}: found a planner job already. Add --to SYSTEM, or run planner plan {recipe}")
    _, text = job_of(found)
    _write(found, text, output, force=force)


convert.__doc__ = str(convert.__doc__).format(systems=readable())


def _refuse_impossible(to: str, at: int | None) -> None:
    known = targets()
    if to not in {"job", *known}:
        raise UserError(f"--to {to}: no such system. Write job, {', '.join(known[:-1])} or {known[-1]}")
    if to == "job" and at is not None:
        raise UserError("--at W needs --to SYSTEM, because a job is exact at every count. Leave --at out")
    check_number("--at", at, MAX_WORKERS)


def _print_rewrite(found: Recipe, to: str, gpus: int | None) -> None:
    if gpus is None:
        raise UserError(f"--at W is missing. Write the number of GPUs, such as --to {to} --at 8")
    made = rewrite(found, to, gpus)
    typer.echo("\n".join(rewrite_lines(found, made, gpus, terminal_width())))


def _write(found: Recipe, text: str, output: str | None, *, force: bool) -> None:
    lines = conversion_lines(found, terminal_width())
    if output is None:
        typer.echo(text, nl=False)
        typer.echo("\n".join(lines), err=True)
        return
    write_new_file(Path(output), text, force=force)
    typer.echo("\n".join(lines))
    typer.echo(f"\nwrote {output}" + (". Do what stands under `to do` before you train" if found.draft.to_do else ""))
    typer.echo(f"see the plan:  {shlex.join(['planner', 'plan', output, '--gpus', '1-16'])}")
