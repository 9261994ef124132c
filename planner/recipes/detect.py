"""Whose recipe it is: each system is asked, and there is one answer, or a refusal that says what it looks like."""

from difflib import get_close_matches

from planner.errors import PlannerError, RecipeError
from planner.files.words import cut
from planner.recipes import ours, registry, strangers
from planner.recipes.command import KNOWN_COMMANDS
from planner.recipes.source import Found
from planner.recipes.strangers import READ
from planner.recipes.system import System
from planner.recipes.texts import recipe_error

_MARKS = (
    "the DPO repository (batch_size, trainer, loss.name), HALOs (model.batch_size, loss.trainer), TRL "
    "(per_device_train_batch_size), "
    "DeepSpeed (train_batch_size) or a job of ours (batch.global)"
)
_FINGERPRINTS = ("batch_size", "per_device_train_batch_size", "train_batch_size", "gradient_accumulation_steps")


def system_of(found: Found) -> System:
    """The system that reads what was found.

    A job of ours comes first. What looks like a system that planner does not read is no recipe of those that it reads.
    Installed packages are asked last, so they cannot change what planner reads, and a broken one harms only what
    nobody else reads.

    Raises:
        RecipeError: nobody reads it; the message says what it looks like, and which packages could not be asked.
    """
    if ours.SYSTEM.claims(found):
        return ours.SYSTEM
    stranger = strangers.known_by(found.program, found.keys)
    asked = registry.READ if stranger is None else ()
    for system in asked:
        if system.claims(found):
            return system
    broken: list[PlannerError] = []
    for its in registry.added():
        if isinstance(its, PlannerError):
            broken.append(its)
        elif its.claims(found):
            return its
    raise _refusal(found, stranger, broken)


def _refusal(found: Found, stranger: strangers.Likeness | None, broken: list[PlannerError]) -> RecipeError:
    if stranger is not None:
        text = f"this looks like {stranger.name} ({stranger.why}); planner does not read it. It reads {READ}"
    else:
        asked = (system.near_miss(found) for system in registry.KNOWN.values() if system.near_miss)
        text = next(filter(None, asked), "") or _nobodys(found)
    return recipe_error(found.source, text, *map(str, broken))


def _nobodys(found: Found) -> str:
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
