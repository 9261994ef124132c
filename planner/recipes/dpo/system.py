"""The DPO repository as a `System`. `read` reads its recipes."""

from planner.recipes.dpo.keys import LOSSES, RULES, TITLE
from planner.recipes.system import System, later

SYSTEM = System(
    name="dpo",
    title="DPO repository",
    detect=later("planner.recipes.hydra_recipes.detect:detect", is_halos=False),
    read=later("planner.recipes.dpo.read:read"),
    near_miss=later("planner.recipes.hydra_recipes.detect:near_miss"),  # for HALOs, too
    render=later("planner.recipes.dpo.render:render"),
    render_command=later("planner.recipes.dpo.render:render_command"),
    listed=TITLE,
    marks=("batch_size", "trainer", "loss.name"),
    programs=("train.py",),
    rules=RULES,
    versions="the DPO repository at f8b8c0f",
    methods=LOSSES,
)
