"""Finds the system of a recipe: the first one that recognises it. A refusal says what the recipe looks like."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from planner.errors import PlannerError, RecipeError
from planner.files.known_files import SHELL_SUFFIXES, known_file
from planner.files.messages import cut
from planner.recipes import job_system, systems, unsupported
from planner.recipes.config_reader import recipe_error, text_of
from planner.recipes.source import RecipeSource
from planner.recipes.system import System
from planner.recipes.trainer import keys as trainer
from planner.recipes.trl import system as trl_system


def system_of(found: RecipeSource) -> System:
    """The system that reads a recipe.

    planner's own job files come first. A recipe that looks like one of an unsupported system, or has many keys that
    TRL does not know, is not offered to the supported ones. Systems of installed packages come last, so they cannot
    change what planner reads, and a broken package harms only recipes that no other system reads.

    Raises:
        RecipeError: no system reads it. The message says what it looks like, and which packages failed.
    """
    if marked := systems.marked(found):
        return marked
    likeness = unsupported.known_by(found.program, found.keys)
    strange = likeness.text if likeness else trl_system.another_system(found)
    candidates: Sequence[System] = (job_system.SYSTEM,) if strange else (job_system.SYSTEM, *systems.READ)
    for system in candidates:
        if system.claims(found):
            if system is trl_system.SYSTEM and (other := _of_another(found)):
                raise recipe_error(found.source, f"TRL does not know all keys{other}")
            return system
    added, broken = systems.added()
    for system in added:
        try:
            if system.claims(found):
                return system
        except PlannerError as error:
            broken.append(error)
    text = systems.not_read(strange) if strange else _near_miss(found, added) or _unknown(found)
    raise recipe_error(found.source, text + (_of_another(found) or _of_trainer(found)), *map(str, broken))


def _of_another(found: RecipeSource) -> str:
    """How to name a system that takes all keys of a file, although none of them is its own alone. Empty if TRL does."""
    if found.kind != "keys" or not found.keys or _takes(trl_system.SYSTEM, found):
        return ""
    others = [system for system in systems.MARKED if _takes(system, found)]
    named = [f"{each.title} takes all of them. If it trains this file, write --system {each.name}" for each in others]
    return f". {'. '.join(named)}" if named else ""


def _takes(system: System, found: RecipeSource) -> bool:
    return all(system.rules.row(name) for name in found.keys)


def _of_trainer(found: RecipeSource) -> str:
    """How to see the batch of a recipe whose keys are the Trainer's, although no system reads it."""
    if trainer.MICRO not in found.keys:
        return ""
    return ". If transformers' Trainer trains it, `planner check --system trainer` shows its batch"


def other_kind(path: str) -> str:
    """The refusal of a file that is no recipe of any system, such as a cluster's file. Empty if it is not known.

    Python files and scripts have texts of their own.
    """
    with suppress(RecipeError):
        known = known_file(path, text_of(path)) if Path(path).suffix not in {".py", *SHELL_SUFFIXES} else None
        return known.instead_of("a recipe") if known else ""
    return ""


def _near_miss(found: RecipeSource, added: Sequence[System]) -> str:
    """The first system's reason why the recipe is almost one of its own, empty if no system has one."""
    found = replace(found, readable=systems.readable())
    asked = (system.near_miss(found) for system in (*systems.KNOWN.values(), *added) if system.near_miss)
    return next(filter(None, asked), "")


def _unknown(found: RecipeSource) -> str:
    if found.kind == "keys" and (known := other_kind(found.path)):
        return known
    match found.kind:
        case "TOML":
            return systems.not_read("found TOML, which no supported system uses")
        case "Python":
            return (
                "found a Python file. Write the command that starts it, in quotes, or for a training loop of your own, "
                "see docs/guides/your-own-loop.md"
            )
        case "keys":
            return f"found no recipe that planner knows: {_nearest(list(found.tree))}"
    return systems.not_read(f"found no training command that planner knows ({systems.PROGRAMS})")


def _nearest(keys: list[str]) -> str:
    sizes = systems.sizes()
    for key in keys:
        near = get_close_matches(key, sizes, n=1, cutoff=0.8)
        if near and key not in sizes:
            return f"{cut(key)} resembles {near[0]}. Write {near[0]} if you mean that"
    return f"its keys are {cut(', '.join(keys), 100)}. Write a recipe of {systems.recognised()}"
