"""torchtune as a `System`: its YAML, and the command `tune run`. `read` reads them."""

from planner.recipes.source import RecipeSource
from planner.recipes.system import System, later
from planner.recipes.torchtune.keys import RECIPES, RULES, VERSION

PREFIX = "torchtune."
SCRIPTS = {f"{name.rpartition('/')[2]}.py": name for name in RECIPES}


def detect(found: RecipeSource) -> bool:
    """Whether a file has a component of torchtune, or a command starts one of its recipes."""
    if found.command is not None:
        return found.command.script in {"tune run", *SCRIPTS}
    sections = (its for its in found.tree.values() if isinstance(its, dict))
    return any(str(its.get("_component_", "")).startswith(PREFIX) for its in sections)


SYSTEM = System(
    name="torchtune",
    title="torchtune",
    detect=detect,
    read=later("planner.recipes.torchtune.read:read"),
    render=later("planner.recipes.torchtune.read:render"),
    render_command=later("planner.recipes.torchtune.read:render_command"),
    rules=RULES,
    versions=VERSION,
    listed="torchtune",
    marks=("model._component_",),
    programs=("tune run",),
    methods=("sft", "dpo"),
)
