"""HALOs as a `System`. `read` reads its recipes."""

from planner.recipes.halos.keys import RULES
from planner.recipes.system import System, later

SYSTEM = System(
    name="halos",
    title="HALOs",
    detect=later("planner.recipes.hydra_recipes.detect:detect", is_halos=True),
    read=later("planner.recipes.halos.read:read"),
    render=later("planner.recipes.halos.render:render"),
    render_command=later("planner.recipes.halos.render:render_command"),
    listed="HALOs",
    marks=("model.batch_size", "loss.trainer"),
    programs=("launch.py",),
    rules=RULES,
    versions="HALOs at 2f136e0, and its branch legacy at 4831988",
    methods=("sft", "dpo", "ipo", "simpo", "kto"),
)
