"""ms-swift as a `System`: its YAML and JSON files, and its commands `swift sft`, `swift pt` and `swift rlhf`."""

from planner.recipes.engine import has_marks
from planner.recipes.source import RecipeSource
from planner.recipes.swift.keys import RULES
from planner.recipes.system import System, later


def detect(found: RecipeSource) -> bool:
    """Whether a file has keys of ms-swift alone, or a command starts it."""
    if found.command is None:
        return has_marks(RULES, found.tree)
    is_its = found.command.script.startswith("swift ") or "swift/cli/" in found.command.path
    return is_its or has_marks(RULES, dict.fromkeys(found.keys))


SYSTEM = System(
    name="swift",
    title="ms-swift",
    detect=detect,
    read=later("planner.recipes.swift.read:read"),
    render=later("planner.recipes.swift.render:render"),
    render_command=later("planner.recipes.swift.render:render_command"),
    why_not=later("planner.recipes.trainer.writing:why_not"),
    rules=RULES,
    versions="ms-swift 4.6.0",
    listed="ms-swift",
    marks=("tuner_type", "rlhf_type"),
    programs=("swift sft",),
    methods=("sft", "dpo", "ipo", "kto", "simpo"),
    takes_repeats=True,
)
