"""Other systems' recipes: what they say, what their own systems would do with them, and how to say a batch to those.

    look -> system_of -> System.read -> Recipe -> job_of, or rewrite -> System.render

A `System` (system.py) holds what planner can do with one training system; `systems.py` lists them, with those that
installed packages add, and `detect.py` finds the one that a recipe is of. The room reads their files, and knows no
torch, no Ray and no terminal. A recipe becomes a job of ours (`job_of`), a list of what became of every key, and the
behaviour of its own system at any GPU count (`Recipe.foreign`).
"""

from planner.recipes.drafting import Options
from planner.recipes.job_text import job_of
from planner.recipes.read import read_recipe
from planner.recipes.recipe import AmbiguousUnit, BatchOutcome, CheckOptions, Draft, Note, Recipe, Rewrite, Trap
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
    "Options",
    "Recipe",
    "RecipeSource",
    "Rewrite",
    "System",
    "Trap",
    "job_of",
    "needs_job",
    "read_recipe",
    "rewrite",
    "targets",
]
