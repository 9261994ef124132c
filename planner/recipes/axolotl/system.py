"""axolotl as a `System`: its YAML files, and the commands that train them. `read` reads them."""

from planner.recipes.axolotl.keys import RULES
from planner.recipes.engine import has_marks
from planner.recipes.source import RecipeSource
from planner.recipes.system import System, later

CLI, MODULE = "axolotl train", "axolotl.cli.train"


def detect(found: RecipeSource) -> bool:
    """Whether a file has keys of axolotl alone, or a command starts it."""
    if found.command is None:
        return has_marks(RULES, found.tree)
    return found.command.script in {CLI, MODULE}


SYSTEM = System(
    name="axolotl",
    title="axolotl",
    detect=detect,
    read=later("planner.recipes.axolotl.read:read"),
    render=later("planner.recipes.axolotl.render:render"),
    render_command=later("planner.recipes.axolotl.render:render_command"),
    why_not=later("planner.recipes.axolotl.render:why_not"),
    listed="axolotl",
    marks=RULES.of(mark=True)[:2],
    programs=(CLI,),
    rules=RULES,
    versions="axolotl 0.19.0",
    methods=("sft", "dpo", "ipo", "kto", "simpo"),
    takes_repeats=True,
)
