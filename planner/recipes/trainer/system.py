"""transformers' Trainer as a `System`, for a script of the user's own: `--system trainer`. `read` reads it."""

from planner.recipes.system import System, later
from planner.recipes.trainer.keys import TRAINING_ARGUMENTS

SYSTEM = System(
    name="trainer",
    title="the Trainer",
    read=later("planner.recipes.trainer.read:read"),
    detect=lambda found: False,  # noqa: ARG005
    rules=TRAINING_ARGUMENTS,
    versions="transformers 4.53 to 5.23",
)
