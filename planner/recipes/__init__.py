"""Other systems' recipes: what they say, what their own systems would do with them, and how to say a batch to those.

One file per system. The room knows their keys, units and traps; it reads their files, and knows no torch, no Ray and no
terminal. A recipe becomes a job of ours (`job_of`), a list of what became of every key, and the behaviour of its own
system at any GPU count (`Recipe.foreign`).
"""

from planner.recipes.drafting import Options
from planner.recipes.job_text import job_of
from planner.recipes.read import read_recipe
from planner.recipes.recipe import Note, Outcome, Question, Recipe, Rewrite, Trap, Unit
from planner.recipes.registry import TARGETS, targets
from planner.recipes.rewrite import needs_job, rewrite

__all__ = [
    "TARGETS",
    "Note",
    "Options",
    "Outcome",
    "Question",
    "Recipe",
    "Rewrite",
    "Trap",
    "Unit",
    "job_of",
    "needs_job",
    "read_recipe",
    "rewrite",
    "targets",
]
