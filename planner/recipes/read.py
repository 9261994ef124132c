"""Reads a recipe: finds its source and its system, and lets the system read it."""

from collections.abc import Sequence
from dataclasses import replace

from planner.errors import RecipeError
from planner.recipes import systems
from planner.recipes.config_reader import recipe_error
from planner.recipes.detect import other_kind, system_of
from planner.recipes.drafting import RecipeOptions
from planner.recipes.recipe import Recipe
from planner.recipes.source import RecipeSource, find_source
from planner.recipes.trainer import system as trainer


def read_recipe(path: str, arguments: Sequence[str] = (), options: RecipeOptions | None = None) -> Recipe:
    """Read a recipe.

    Args:
        path: a file, a Hydra folder, or the text of a command.
        arguments: overrides behind the recipe.
        options: what the command line says beside the recipe.

    Raises:
        RecipeError: the recipe is unreadable, contradictory or incomplete. The message has a line for each mistake.
        JobError: the recipe is a planner job file with mistakes.
    """
    options = options or RecipeOptions()
    found = _source(path, arguments, options)
    system = systems.reader(options.system) if options.system else system_of(found)
    assert system.read is not None
    if found.repeats and not system.takes_repeats:
        raise recipe_error(found.source, *(each.refusal(system.title) for each in found.repeats))
    recipe = system.read(found, options)
    named = found.command.launcher.get("--config_file", "") if found.command else ""
    return replace(recipe, system=system.name, title=system.title, launch_file=options.accelerate or named)


def _source(path: str, arguments: Sequence[str], options: RecipeOptions) -> RecipeSource:
    """The source of a recipe.

    Raises:
        RecipeError: it cannot be read. A file of another kind is named, such as a list of packages.
    """
    try:
        any_script = options.system == trainer.SYSTEM.name
        return find_source(path, arguments, options.env, any_script=any_script, programs=systems.PROGRAMS)
    except RecipeError:
        if known := other_kind(path):
            raise recipe_error(path, known) from None
        raise
