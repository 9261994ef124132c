"""A recipe on disk or on a command line -> a `Recipe`."""

from collections.abc import Sequence
from dataclasses import replace

from planner.recipes.detect import system_of
from planner.recipes.drafting import Options
from planner.recipes.recipe import Recipe
from planner.recipes.source import find_source


def read_recipe(path: str, words: Sequence[str] = (), options: Options | None = None) -> Recipe:
    """The recipe at a path: a file, a folder of Hydra's, or the text of a command; `words` are overrides.

    Raises:
        RecipeError: it cannot be read, contradicts itself, or does not say enough; the message has a line per mistake.
        JobError: it is a job of ours, and wrong.
    """
    options = options or Options()
    found = find_source(path, words, options.env)
    system = system_of(found)
    assert system.read is not None
    recipe = system.read(found, options)
    named = found.command.launcher.get("--config_file", "") if found.command else ""
    return replace(recipe, system=system.name, title=system.title, launch_file=options.accelerate or named)
