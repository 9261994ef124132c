"""The DPO repository as a `System`."""

from functools import partial

from planner.recipes.dpo.keys import CONFIG, LOSSES, RULES, TITLE
from planner.recipes.dpo.read import base, read
from planner.recipes.drafting import RecipeOptions
from planner.recipes.entries import KeyReader
from planner.recipes.hydra.compose import Composed
from planner.recipes.hydra_recipes.detect import detect, near_miss
from planner.recipes.hydra_recipes.read import HydraSystem
from planner.recipes.hydra_recipes.read import read as read_configuration
from planner.recipes.recipe import Recipe
from planner.recipes.source import RecipeSource
from planner.recipes.system import System, later


def _read(keys: KeyReader, made: Composed, found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The recipe of a composed configuration. Notes mistakes in `keys`."""
    del found
    return read(keys, made.choices, options, used=frozenset(made.used))


SYSTEM = System(
    name="dpo",
    title="DPO repository",
    detect=partial(detect, is_halos=False),
    read=partial(read_configuration, its=HydraSystem(title=TITLE, config=CONFIG, base=base, read=_read, losses=LOSSES)),
    near_miss=near_miss,  # for HALOs, too
    render=later("planner.recipes.dpo.render:render"),
    render_command=later("planner.recipes.dpo.render:render_command"),
    listed=TITLE,
    marks=("batch_size", "trainer", "loss.name"),
    programs=("train.py",),
    rules=RULES,
    versions="the DPO repository at f8b8c0f",
    methods=LOSSES,
)
