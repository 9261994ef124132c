"""Opens the keys of a recipe of a system on transformers' Trainer, and reads what starts its processes."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from planner.recipes.command import Command
from planner.recipes.drafting import RecipeOptions
from planner.recipes.engine import refuse_unknown, refuse_values, rename
from planner.recipes.entries import KeyReader, flat
from planner.recipes.overrides import overrides
from planner.recipes.recipe import Recipe
from planner.recipes.rule import Rules
from planner.recipes.source import RecipeSource
from planner.recipes.trackers import variables_of
from planner.recipes.trainer.dialect import Dialect
from planner.recipes.trainer.recipe import leave_unresolved, read_truths
from planner.recipes.trainer.sizes import expand

# Variables that a command of planner's sets itself, or that say where another one ran.
_OF_LAUNCHERS = re.compile(
    r"NPROC_PER_NODE|NNODES|NODE_RANK|FORCE_TORCHRUN|USE_RAY|MASTER_(ADDR|PORT)|RDZV_ID|M(AX|IN)_NNODES|"
    r"CUDA_VISIBLE_DEVICES|(LOCAL_)?(RANK|WORLD_SIZE)|PATH|PYTHONPATH|HOME"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|API_?KEY", re.IGNORECASE)


def opened(
    source: str,
    tree: Mapping[str, object],
    arguments: Sequence[str],
    options: RecipeOptions,
    *,
    rules: Rules,
    versions: str,
    dialect: Dialect,
    fix: str,
    takes_any: bool = False,
    check: Callable[[KeyReader], None] = lambda keys: None,  # noqa: ARG005
) -> KeyReader:
    """The keys of a recipe under the Trainer's names, with mistakes for those that its system refuses.

    Args:
        source: the recipe's name in messages.
        tree: the keys of its file.
        arguments: the options behind it, which win.
        options: the options of planner's command line.
        rules: the rows of the system.
        versions: where a default is from, as in `KeyReader`.
        dialect: what the system does in its own way.
        fix: how the user writes a value, as in `KeyReader`.
        takes_any: whether the system takes keys without a row.
        check: notes mistakes in keys that still have the recipe's own names.
    """
    entries = flat(tree, source)
    others = overrides(arguments, entries)
    keys = KeyReader(
        source=source, entries=entries, fix=fix, is_for_job=options.is_for_job, rules=rules, versions=versions
    )
    form = fix.format("key").replace("VALUE", "value")
    keys.mistakes += [f"{each}: not {form}. Write it in this form" for each in others]
    if not takes_any:
        refuse_unknown(keys, dialect.title)
    check(keys)
    rename(keys)
    leave_unresolved(keys, dialect)
    expand(keys)
    read_truths(keys)
    refuse_values(keys, dialect.title)
    return keys


def started(
    recipe: Recipe, keys: KeyReader, found: RecipeSource, options: RecipeOptions, config: str, arguments: Sequence[str]
) -> Recipe:
    """The recipe with what starts it.

    Args:
        recipe: the recipe.
        keys: its keys.
        found: its source.
        options: the options of planner's command line, with the variables of the recipe's own command.
        config: the file that a command names, empty if none.
        arguments: the options behind it.

    Raises:
        RecipeError: there are mistakes.
    """
    keys.raise_mistakes()
    script = found.command.script if found.command else ""
    variables = {**variables_of(options.env), **kept(found.command)}
    return replace(recipe, script=script, arguments=tuple(arguments), config=config, environment=variables)


def kept(command: Command | None) -> dict[str, str]:
    """The variables of a recipe's command that a command for another count keeps: no launcher's, and no secrets."""
    return {
        name: value
        for name, value in (command.environment if command else {}).items()
        if not _OF_LAUNCHERS.fullmatch(name) and not _SECRET.search(name)
    }
