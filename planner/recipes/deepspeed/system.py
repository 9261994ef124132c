"""DeepSpeed as a `System`: planner recognises its JSON, reads it, and writes it with other batch numbers."""

from planner.recipes.deepspeed.keys import BATCH, MICRO, RULES, STEPS
from planner.recipes.source import RecipeSource
from planner.recipes.system import System, later


def detect(found: RecipeSource) -> bool:
    """Whether the file has the keys of a DeepSpeed file."""
    tree = found.tree
    return BATCH in tree or MICRO in tree or ("zero_optimization" in tree and STEPS in tree)


SYSTEM = System(
    name="deepspeed",
    title="DeepSpeed",
    detect=detect,
    read=later("planner.recipes.deepspeed.read:read"),
    render=later("planner.recipes.deepspeed.render:render"),
    listed="DeepSpeed",
    part="'s batch sizes",
    marks=("train_batch_size",),
    rules=RULES,
    versions="DeepSpeed's configuration file",
)
