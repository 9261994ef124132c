"""TRL and the alignment-handbook as a `System`: their flat YAML, and commands that start TRL's scripts."""

from contextlib import suppress

from planner.base.text import enumerated
from planner.errors import RecipeError
from planner.files.messages import cut
from planner.recipes.command import HYDRA_SCRIPTS, other_of_trl
from planner.recipes.entries import flat
from planner.recipes.overrides import overrides
from planner.recipes.source import RecipeSource
from planner.recipes.system import System, later
from planner.recipes.trl import unknown as trl_unknown
from planner.recipes.trl.arguments import config_of
from planner.recipes.trl.keys import METHODS, RULES

# Together with `model_name_or_path`, one of these marks a TRL recipe that leaves the batch to TRL's defaults.
_BESIDE_A_MODEL = ("gradient_accumulation_steps", "dataset_name", "dataset_mixture", "dataset_mixer")


def detect(found: RecipeSource) -> bool:
    """Whether a file has the keys of a TRL recipe, or a command starts a script of TRL."""
    if found.command:
        return found.command.script not in HYDRA_SCRIPTS
    tree = found.tree
    has_model = "model_name_or_path" in tree and not tree.keys().isdisjoint(_BESIDE_A_MODEL)
    return "per_device_train_batch_size" in tree or has_model


def another_system(found: RecipeSource) -> str:
    """What a recipe is that `detect` would take for TRL's, but whose keys are of another system. Else an empty text."""
    if not detect(found):
        return ""
    entries = flat(found.tree, found.source)
    if found.command:
        arguments = list(found.arguments)
        with suppress(RecipeError):  # `read` refuses a variable as the file's name
            config_of(arguments, found.source)
        overrides(arguments, entries)
    return trl_unknown.another_system(entries)


def near_miss(found: RecipeSource) -> str:
    """The reason if the recipe is a `trl` command that planner does not read, else an empty text."""
    other = other_of_trl(found.text) if found.kind == "text" else ""
    return f"found trl {cut(other)}. planner reads trl {enumerated(METHODS)}" if other else ""


SYSTEM = System(
    name="trl",
    title="TRL",
    detect=detect,
    read=later("planner.recipes.trl.read:read"),
    near_miss=near_miss,
    render=later("planner.recipes.trl.render:render"),
    render_command=later("planner.recipes.trl.render:to_trl"),
    rules=RULES,
    versions="TRL 0.19 to 1.16, transformers 4.53 to 5.23, the alignment-handbook to v0.3",
    listed="TRL",
    marks=("per_device_train_batch_size",),
    programs=("sft.py", "trl dpo"),
    methods=("sft", "dpo", "ipo", "kto", "simpo"),
    takes_repeats=True,
)
