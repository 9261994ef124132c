"""accelerate as a `System`: planner writes its file, but reads one only beside a recipe (`--accelerate`)."""

from collections.abc import Sequence
from typing import NoReturn

from planner.recipes.config_reader import recipe_error, text_of
from planner.recipes.drafting import RecipeOptions
from planner.recipes.recipe import Rewrite
from planner.recipes.rendering import guessed_precision
from planner.recipes.source import RecipeSource
from planner.recipes.system import BatchSplit, System
from planner.recipes.trainer.accelerate import (
    file_text,
    is_accelerate,
    launch_notes,
    local_file,
    read_launch,
    with_counts,
)


def detect(found: RecipeSource) -> bool:
    """Whether the file has the keys of an accelerate file."""
    return is_accelerate(found.tree)


def read(found: RecipeSource, options: RecipeOptions) -> NoReturn:
    """Refuse an accelerate file that is given as a recipe.

    Raises:
        RecipeError: always. The message says where the file belongs.
    """
    del options
    text = (
        "found an accelerate file, which says how many processes start but not what they train. Write the recipe, "
        "and this file behind --accelerate"
    )
    raise recipe_error(found.source, text)


def render(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """The user's accelerate file with other counts, or a new one, with notes on what the script must do."""
    del arguments
    recipe, gpus, steps = split.recipe, split.gpus, split.accumulation
    command = f"accelerate launch --config_file accelerate.yaml --num_processes {gpus} YOUR_SCRIPT"
    must = f"the script must use micro-batches of {split.micro}"
    if not (path := local_file(recipe)):
        file = file_text(gpus, steps, precision=recipe.precision)
        return Rewrite(command=command, file=file, notes=(must, *guessed_precision(recipe)))
    sizes = read_launch(path).deepspeed
    is_in_file = sizes is not None and sizes.accumulation is not None
    note = must if is_in_file else f"{must} and {steps} accumulation steps, because {path} does not set them"
    file = with_counts(text_of(path), gpus, steps)
    return Rewrite(command=command, file=file, notes=(note, *launch_notes(path, gpus)))


SYSTEM = System(name="accelerate", title="accelerate", detect=detect, read=read, render=render, takes_repeats=True)
