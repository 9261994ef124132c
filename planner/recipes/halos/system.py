"""HALOs as a `System`."""

from functools import partial

from planner.base.disk import is_file
from planner.recipes.config_reader import text_of
from planner.recipes.drafting import RecipeOptions
from planner.recipes.entries import KeyReader
from planner.recipes.halos.batching import Meaning
from planner.recipes.halos.keys import CONFIG, RULES
from planner.recipes.halos.read import base, meaning_in_comment, read
from planner.recipes.hydra.compose import Composed
from planner.recipes.hydra_recipes.detect import detect
from planner.recipes.hydra_recipes.read import HydraSystem
from planner.recipes.hydra_recipes.read import read as read_configuration
from planner.recipes.recipe import Recipe
from planner.recipes.source import RecipeSource
from planner.recipes.system import System, later
from planner.recipes.trainer.accelerate import read_launch
from planner.recipes.trainer.launcher import launch_of


def _read(keys: KeyReader, made: Composed, found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The recipe of a composed configuration, with what its command and its files say. Notes mistakes in `keys`."""
    launch = launch_of(found.command, options, keys, found.source) if found.command else None
    if options.accelerate and launch is None:
        launch = read_launch(options.accelerate)
    if launch and options.gpus and launch.num_processes not in {None, options.gpus}:
        keys.wrong(
            f"{options.gpus_option} {options.gpus}: {launch.source} says num_processes {launch.num_processes}. "
            "Leave one of them out"
        )
    group = found.command.group_size if found.command else None
    commented, used = _meaning_in_files(found), frozenset(made.used)
    return read(keys, made.choices, options, commented=commented, launch=launch, group=group, used=used)


def _meaning_in_files(found: RecipeSource) -> Meaning | None:
    """What a comment in HALOs' files says that batch_size counts, None if there is none."""
    if found.folder is not None:
        file = found.folder / "model" / "base_model.yaml"
        return meaning_in_comment(text_of(file)) if is_file(file) else None
    return meaning_in_comment(found.text) if found.kind == "keys" else None


SYSTEM = System(
    name="halos",
    title="HALOs",
    detect=partial(detect, is_halos=True),
    read=partial(read_configuration, its=HydraSystem(title="HALOs", config=CONFIG, base=base, read=_read)),
    render=later("planner.recipes.halos.render:render"),
    render_command=later("planner.recipes.halos.render:render_command"),
    listed="HALOs",
    marks=("model.batch_size", "loss.trainer"),
    programs=("launch.py",),
    rules=RULES,
    versions="HALOs at 2f136e0, and its branch legacy at 4831988",
    methods=("sft", "dpo", "ipo", "simpo", "kto"),
)
