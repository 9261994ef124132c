"""Which system a recipe belongs to: the first one that recognises it. A refusal says what the recipe looks like."""

from collections.abc import Sequence
from difflib import get_close_matches

from planner.errors import PlannerError
from planner.files.messages import cut
from planner.recipes import ours, strangers, systems
from planner.recipes.command import KNOWN_COMMANDS
from planner.recipes.source import RecipeSource
from planner.recipes.strangers import READ
from planner.recipes.system import System
from planner.recipes.texts import recipe_error

_MARKS = (
    "the DPO repository (batch_size, trainer, loss.name), HALOs (model.batch_size, loss.trainer), TRL "
    "(per_device_train_batch_size), "
    "DeepSpeed (train_batch_size) or a job of ours (batch.global)"
)
_FINGERPRINTS = ("batch_size", "per_device_train_batch_size", "train_batch_size", "gradient_accumulation_steps")


def system_of(found: RecipeSource) -> System:
    """The system that reads what was found.

    planner's own job files come first. A recipe that looks like one of a system that planner does not read is not
    offered to the systems that it reads. Systems of installed packages are asked last, so they cannot change what
    planner reads, and a broken package harms only recipes that no other system reads.

    Raises:
        RecipeError: no system reads it; the message says what it looks like, and which packages could not be asked.
    """
    stranger = strangers.known_by(found.program, found.keys)
    asked: Sequence[System] = (ours.SYSTEM,) if stranger else (ours.SYSTEM, *systems.READ)
    for system in asked:
        if system.claims(found):
            return system
    added, broken = systems.added()
    for system in added:
        try:
            if system.claims(found):
                return system
        except PlannerError as error:
            broken.append(error)
    text = _looks_like(stranger) if stranger else _near_miss(found, added) or _nobodys(found)
    raise recipe_error(found.source, text, *map(str, broken))


def _looks_like(stranger: strangers.Likeness) -> str:
    return f"this looks like {stranger.name} ({stranger.why}); planner does not read it. It reads {READ}"


def _near_miss(found: RecipeSource, added: Sequence[System]) -> str:
    """What the first system says that almost knows it; empty if none does."""
    asked = (system.near_miss(found) for system in (*systems.KNOWN.values(), *added) if system.near_miss)
    return next(filter(None, asked), "")


def _nobodys(found: RecipeSource) -> str:
    match found.kind:
        case "TOML":
            return f"found TOML, and no system that planner reads has it; it reads {READ}"
        case "Python":
            return f"found a Python file; planner reads {READ}"
        case "keys":
            return f"found no recipe that planner knows: {_nearest(list(found.tree))}"
    return f"found no training command that planner knows ({KNOWN_COMMANDS}); it reads {READ}"


def _nearest(keys: list[str]) -> str:
    for key in keys:
        near = get_close_matches(key, _FINGERPRINTS, n=1, cutoff=0.8)
        if near and key not in _FINGERPRINTS:
            return f"{cut(key)} is near {near[0]}; write it so if it is meant"
    return f"its keys are {cut(', '.join(keys), 100)}; write one of {_MARKS}"
