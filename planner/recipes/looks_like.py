"""Says which system's recipe a file looks like, for a file that stands where a job belongs."""

import shlex

from planner.errors import RecipeError, printable
from planner.files.known_files import is_job
from planner.recipes import systems, unsupported
from planner.recipes.deepspeed import system as deepspeed_system
from planner.recipes.source import RecipeSource, find_source
from planner.recipes.trainer import accelerate_system


def looks_like(path: str) -> str:
    """What the file at a path is if it is a recipe, and what takes it. Empty if it is none, or may be a job.

    Args:
        path: a file, not a folder.
    """
    if path.endswith(".py"):  # it may name a training command in a comment
        return ""
    try:
        found = find_source(path, (), {})
        if is_job(found.tree) or {"batch", "train"} & set(found.tree):
            return ""
        return _text(found, printable(shlex.quote(path)))
    except RecipeError:
        return ""


def _text(found: RecipeSource, path: str) -> str:
    if likeness := unsupported.known_by(found.program, found.keys):
        return systems.not_read(likeness.text)
    system = systems.marked(found) or next((system for system in systems.READ if system.claims(found)), None)
    if system is accelerate_system.SYSTEM:
        return (
            "found an accelerate file, which says how many processes start but not what they train. Write the job of "
            f"a recipe that it starts: planner convert RECIPE --accelerate {path}"
        )
    if system is None:
        return ""
    what = "a DeepSpeed configuration" if system is deepspeed_system.SYSTEM else f"a recipe of {system.title}"
    return f"found {what}, not a job. Make a job of it: planner convert {path}"
