"""LLaMA-Factory as a `System`: its YAML and JSON files, and the commands that train them. `read` reads them."""

from collections.abc import Mapping, Sequence

from planner.recipes.config_reader import beside, mapping_of, text_of
from planner.recipes.engine import has_marks
from planner.recipes.llamafactory.keys import RULES
from planner.recipes.source import YAML, RecipeSource
from planner.recipes.system import System, later

CLI = ("llamafactory-cli train", "lmf train")
SCRIPTS = ("train.py", "train_bash.py")


def detect(found: RecipeSource) -> bool:
    """Whether a file has keys of LLaMA-Factory alone, or a command starts it."""
    if found.command is None:
        return has_marks(RULES, found.tree)
    if found.command.script in CLI:
        return True
    tree = file_of(found)[0] if found.command.script in SCRIPTS else {}
    return has_marks(RULES, tree) or has_marks(RULES, dict.fromkeys(found.keys))


def file_of(found: RecipeSource) -> tuple[Mapping[str, object], str, Sequence[str]]:
    """The keys of the recipe's file, its path, and the arguments behind it. A command's first argument is the file."""
    if found.command is None:
        return found.tree, found.source, found.arguments
    first, *rest = [*found.arguments, ""]
    if not first.endswith(YAML) or first.startswith("-"):
        return {}, "", found.arguments
    path = beside(found.source, first)
    return mapping_of(text_of(path), first), first, tuple(rest[:-1])


SYSTEM = System(
    name="llamafactory",
    title="LLaMA-Factory",
    detect=detect,
    read=later("planner.recipes.llamafactory.read:read"),
    render=later("planner.recipes.llamafactory.render:render"),
    render_command=later("planner.recipes.llamafactory.render:render_command"),
    why_not=later("planner.recipes.trainer.writing:why_not"),
    rules=RULES,
    versions="LLaMA-Factory 0.9.5 (its trainer v0)",
    listed="LLaMA-Factory",
    marks=RULES.of(mark=True)[:2],
    programs=CLI[:1],
    methods=("sft", "dpo", "ipo", "kto", "simpo"),
)
