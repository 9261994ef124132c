"""Options that `convert` and `check` share."""

import re
from typing import Annotated

import typer

from planner.errors import UserError
from planner.plan.factory import MAX_MICRO, MAX_WORKERS
from planner.recipes import RecipeOptions

RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="a config (YAML, JSON), a Hydra folder, a training script, or its command line in quotes",
        show_default=False,
    ),
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="the recipe's own overrides: key=value, ++key=value, --key value"),
]
AccelerateOption = Annotated[
    str | None, typer.Option("--accelerate", metavar="FILE", help="the accelerate config that the recipe is run with")
]
MethodOption = Annotated[
    str | None, typer.Option("--method", metavar="NAME", help="method of a TRL recipe: sft, dpo, orpo, kto or grpo")
]
SystemOption = Annotated[
    str | None,
    typer.Option(
        "--system",
        metavar="NAME",
        help="the system that reads the recipe. trainer: any script of transformers' Trainer",
    ),
]
HalosOption = Annotated[
    str | None,
    typer.Option(
        "--halos-batch",
        metavar="MEANING",
        help="what HALOs' batch_size counts: total (since May 2025) or per-accumulation (before)",
    ),
]
MicroOption = Annotated[
    int | None, typer.Option("--max-micro", metavar="M", help="the most samples that fit into one GPU's forward pass")
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="a variable that the recipe's script reads from the shell (may be repeated)",
    ),
]


def options_of(
    *,
    gpus: int | None,
    gpus_option: str,
    accelerate: str | None,
    method: str | None,
    system: str | None,
    halos_batch: str | None,
    max_micro: int | None,
    env: list[str] | None,
    is_for_job: bool,
) -> RecipeOptions:
    """Check the options and return them as one value.

    Raises:
        UserError: a number is out of bounds, or a variable is not NAME=VALUE.
    """
    check_number(gpus_option, gpus, MAX_WORKERS)
    check_number("--max-micro", max_micro, MAX_MICRO)
    return RecipeOptions(
        gpus=gpus,
        gpus_option=gpus_option,
        max_micro=max_micro,
        accelerate=accelerate,
        halos_batch=halos_batch,
        method=method,
        system=system,
        is_for_job=is_for_job,
        needs_micro=is_for_job,
        env=dict(map(_variable, env or [])),
    )


def _variable(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not re.fullmatch(r"\w+", name, re.ASCII):
        raise UserError(f"--env {text[:40]}: write NAME=VALUE, such as --env LR=5e-7")
    return name, value


def check_number(option: str, value: int | None, most: int) -> None:
    """Check that an option's value is between 1 and `most`, or None.

    Raises:
        UserError: the value is out of bounds.
    """
    if value is not None and not 1 <= value <= most:
        raise UserError(f"{option} {value}: write a whole number from 1 to {most}")
