"""Reads recipes of other training systems, converts them to planner jobs, and writes their batch for another system.

    find_source -> system_of -> System.read -> Recipe -> job_of, or rewrite -> System.render

A `System` (system.py) holds what planner can do with one training system. `systems.py` lists all systems, also those
of installed packages. `detect.py` finds the system of a recipe. A `Recipe` holds a draft of the job, a note for every
key, and what its own system does at any GPU count (`Recipe.foreign`). The room imports no torch and no Ray.
"""

from planner.recipes.drafting import RecipeOptions
from planner.recipes.job_text import job_of
from planner.recipes.looks_like import looks_like
from planner.recipes.read import read_recipe
from planner.recipes.recipe import AmbiguousUnit, BatchOutcome, CheckOptions, Draft, Note, Recipe, Rewrite, ToDo, Trap
from planner.recipes.rewrite import needs_job, rewrite
from planner.recipes.source import RecipeSource
from planner.recipes.system import BatchSplit, System
from planner.recipes.systems import TARGETS, targets

__all__ = [
    "TARGETS",
    "AmbiguousUnit",
    "BatchOutcome",
    "BatchSplit",
    "CheckOptions",
    "Draft",
    "Note",
    "Recipe",
    "RecipeOptions",
    "RecipeSource",
    "Rewrite",
    "System",
    "ToDo",
    "Trap",
    "job_of",
    "looks_like",
    "needs_job",
    "read_recipe",
    "rewrite",
    "targets",
]
