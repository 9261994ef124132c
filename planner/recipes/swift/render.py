"""Writes a batch as options of ms-swift's commands, and a job as all of them."""

from collections.abc import Sequence

from planner.recipes.recipe import Recipe, Rewrite
from planner.recipes.rendering import Rendering
from planner.recipes.system import BatchSplit
from planner.recipes.trainer import writing
from planner.recipes.trainer.batching import TrainerFacts
from planner.recipes.trainer.keys import MICRO, STEPS

_COMMANDS = ("sft", "pt", "rlhf")


def why_not(recipe: Recipe, gpus: int) -> str:
    """Why planner writes no split of the recipe's batch at a count, with what to do. Empty if it may write one."""
    if isinstance(recipe.foreign, TrainerFacts) and recipe.foreign.splits_batches:
        return "planner writes no sizes beside split_batches of accelerator_config, so remove it from the recipe"
    return writing.why_not(recipe, gpus)


def render_command(rendering: Rendering) -> None:
    """Lists all values of a job: planner writes the batch alone."""
    rendering.leave("model data objective train eval tracking", f"{writing.YOUR_CONFIG} must set it")


def render(split: BatchSplit, arguments: Sequence[str]) -> Rewrite:
    """The command for a split, with the recipe's own file and options."""
    recipe = split.recipe
    _, steps = writing.sizes(split)
    config = recipe.config if recipe.script else recipe.source
    config = config if split.is_own else "" if arguments else writing.YOUR_CONFIG
    name = _name(recipe, is_own=split.is_own)
    if launcher := writing.launcher_options(split):
        program = f"accelerate launch {launcher} swift/cli/{name}.py"
    else:
        program = f"NPROC_PER_NODE={split.gpus} swift {name}"
    options = [f"--{MICRO} {split.micro}", *([] if steps is None else [f"--{STEPS} {steps}"])]
    words = [f"{split.assignments}{program}", *([config] if config else []), *arguments, *options]
    notes = writing.notes(split)
    if split.is_own and not recipe.script and name == "sft":
        notes = (*notes, "write swift pt if the file is one of swift pt")
    return Rewrite(command=" ".join(words), file=split.file, notes=notes)


def _name(recipe: Recipe, *, is_own: bool) -> str:
    """The command that trains the recipe: that of its own command, else by its method."""
    name = recipe.script.removeprefix("swift ").removesuffix(".py") if is_own else ""
    return name if name in _COMMANDS else "sft" if recipe.method == "sft" else "rlhf"
