"""`planner check RECIPE`: compares what a recipe's own system and planner do with it at each GPU count."""

from textwrap import wrap
from typing import Annotated

import typer

from planner.cli.counts import parse_counts
from planner.cli.options import JsonOption, print_heading, styled, terminal_width
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
from planner.plan import BatchSizes, Plan, make_plan
from planner.plan.factory import MAX_MICRO
from planner.recipes import CheckOptions, Recipe, read_recipe
from planner.recipes.systems import systems_read
from planner.report.recipe_table import TableRow, check_json, check_lines, summary_line, trap_lines, unit_lines

_COLOURS = {"exact": typer.colors.GREEN, "other batch": typer.colors.YELLOW, "error": typer.colors.RED}
_MOST_ROWS = 2**40


def check(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    gpus: Annotated[
        str, typer.Option(metavar="COUNTS", help=("the GPU counts to check, such as 1-16, 7 or 3,5,7"))
    ] = "1-16",
    tuned_for: Annotated[
        int | None,
        typer.Option(
            "--tuned-for", metavar="W", help="the GPU count that the recipe was tuned for (TRL recipes do not say it)"
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option("--rows", metavar="N", help=("rows of the training data, to count lost and repeated rows")),
    ] = None,
    group_size: Annotated[
        int | None, typer.Option("--group-size", metavar="N", help="completions per prompt (GRPO), for split groups")
    ] = None,
    transformers: Annotated[
        str | None, typer.Option("--transformers", metavar="VERSION", help="transformers version, such as 4.53.3")
    ] = None,
    accelerate: AccelerateOption = None,
    method: MethodOption = None,
    system: SystemOption = None,
    halos_batch: HalosOption = None,
    max_micro: MicroOption = None,
    env: EnvOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show at which GPU counts a recipe trains its exact batch, in its own system and with planner. Starts nothing.

    It reads recipes of {systems}.
    Example: planner check recipe.yaml --tuned-for 8
    """
    counts = parse_counts(gpus)
    _refuse_impossible(rows, group_size, transformers)
    options = options_of(
        gpus=tuned_for,
        gpus_option="--tuned-for",
        accelerate=accelerate,
        method=method,
        system=system,
        halos_batch=halos_batch,
        max_micro=max_micro,
        env=env,
        is_for_job=False,
    )
    found = read_recipe(recipe, overrides or [], options)
    if found.foreign is None:
        raise UserError(f"{recipe}: found a planner job, not a recipe. To see its splits: planner plan {recipe}")
    cap = max_micro or found.micro
    batch = BatchSizes(global_batch=found.global_batch, max_micro=cap or min(found.global_batch, MAX_MICRO))
    plans = [make_plan(batch, count) for count in counts]
    question = CheckOptions(counts=counts, rows=rows, transformers=transformers, group_size=group_size)
    if as_json:
        typer.echo(check_json(found, plans, question))
        return
    _print_check(found, plans, question, knows_micro=cap is not None)


def _refuse_impossible(rows: int | None, group_size: int | None, transformers: str | None) -> None:
    check_number("--rows", rows, _MOST_ROWS)
    check_number("--group-size", group_size, 2**20)
    if transformers is not None and not transformers[:1].isdecimal():
        raise UserError(f"--transformers {transformers[:40]}: not a version. Write one, such as 4.53.3")


check.__doc__ = str(check.__doc__).format(systems=systems_read())


def _print_check(found: Recipe, plans: list[Plan], question: CheckOptions, *, knows_micro: bool) -> None:
    """Print the table, its summary, units and traps."""
    columns = terminal_width()
    width = min(columns or 100, 100)
    heading, header, table = check_lines(found, plans, knows_micro=knows_micro)
    typer.echo("\n".join(heading))
    typer.echo()
    print_heading(header)
    for row in table:
        typer.echo(_coloured(row))
    if not knows_micro:
        typer.echo("To see planner's micro-batches and rounds, add --tuned-for W or --max-micro M")
    summary = "\n".join(wrap(summary_line(found, plans), width))
    typer.echo()
    print_heading(summary)
    units = unit_lines(found, None if columns is None else columns - 2)
    for title, lines in (("units", units), ("traps", trap_lines(found, question, width))):
        if lines:
            typer.echo()
            print_heading(title)
            indent = "  " if title == "units" else ""
            typer.echo("\n".join(f"{indent}{line}" for line in lines))


def _coloured(row: TableRow) -> str:
    """The row's text, with its verdict in colour."""
    start, end = row.span
    return row.text[:start] + styled(row.text[start:end], colour=_COLOURS[row.verdict]) + row.text[end:]
