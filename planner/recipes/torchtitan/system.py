"""torchtitan as a `System`. planner only writes it."""

from planner.recipes.system import System, later

SYSTEM = System(
    name="torchtitan",
    title="torchtitan",
    render=later("planner.recipes.torchtitan.render:render"),
    render_command=later("planner.recipes.torchtitan.render:render_command"),
    methods=("lm", "sft"),
)
