"""Opens the keys of a recipe of a system on transformers' Trainer, and reads what starts its processes."""

from collections.abc import Mapping, Sequence

from planner.recipes.drafting import RecipeOptions
from planner.recipes.engine import refuse_unknown, refuse_values, rename
from planner.recipes.entries import KeyReader, flat
from planner.recipes.overrides import overrides
from planner.recipes.rule import Rules
from planner.recipes.trainer.dialect import Dialect
from planner.recipes.trainer.recipe import leave_unresolved, read_truths
from planner.recipes.trainer.sizes import expand


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
    """
    entries = flat(tree, source)
    others = overrides(arguments, entries)
    keys = KeyReader(
        source=source, entries=entries, fix=fix, is_for_job=options.is_for_job, rules=rules, versions=versions
    )
    form = fix.format("key").replace("VALUE", "value")
    keys.mistakes += [f"{each}: not {form}. Write it in this form" for each in others]
    refuse_unknown(keys, dialect.title)
    rename(keys)
    leave_unresolved(keys, dialect)
    expand(keys)
    read_truths(keys)
    refuse_values(keys, dialect.title)
    return keys
