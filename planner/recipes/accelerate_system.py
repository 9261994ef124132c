"""accelerate as a system: its file starts a recipe but says nothing of what is trained, so it is written only."""

from collections.abc import Sequence

from planner.recipes.accelerate import file_text, is_accelerate, local_file, machine_notes, read_launch, with_counts
from planner.recipes.recipe import Rewrite
from planner.recipes.saying import guessed_precision
from planner.recipes.source import Found
from planner.recipes.system import Split, System
from planner.recipes.texts import text_of


def near_miss(found: Found) -> str:
    """That such a file is none of the recipes, and where it belongs."""
    if not is_accelerate(found.tree):
        return ""
    return (
        "found an accelerate file, which says how many processes there are and not what is trained; write "
        "the recipe, and this file behind --accelerate"
    )


def render(split: Split, words: Sequence[str]) -> Rewrite:
    """A file: the user's own with the counts changed, or one of ours; and what else must hold."""
    del words
    recipe, gpus, steps = split.recipe, split.gpus, split.accumulation
    command = f"accelerate launch --config_file accelerate.yaml --num_processes {gpus} YOUR_SCRIPT"
    must = f"the script must use micro-batches of {split.micro}"
    if not (path := local_file(recipe)):
        file = file_text(gpus, steps, precision=recipe.precision)
        return Rewrite(command=command, file=file, notes=(must, *guessed_precision(recipe)))
    is_in_file = read_launch(path).accumulation is not None
    note = must if is_in_file else f"{must}, and {steps} accumulation steps, which {path} does not say"
    file = with_counts(text_of(path), gpus, steps)
    return Rewrite(command=command, file=file, notes=(note, *machine_notes(path, gpus)))


SYSTEM = System(name="accelerate", title="accelerate", near_miss=near_miss, render=render)
