"""Plans as a table and as JSON."""

import json
from collections.abc import Iterable, Sequence

from rich.table import Table

from planner.plan import Plan


def split_text(shares: Iterable[tuple[int, int]]) -> str:
    """`4 x 19 + 3 x 18`: four workers with 19 samples each, three with 18."""
    return " + ".join(f"{count} x {samples}" for count, samples in shares)


def plan_table(plans: Sequence[Plan]) -> Table:
    """One row per world size."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("GPUs", "used"):
        table.add_column(name, justify="right")
    table.add_column("split", no_wrap=True)
    for name in ("micro-batch", "rounds", "cost", "efficiency"):
        table.add_column(name, justify="right")
    table.add_column("notes", overflow="fold")
    for plan in plans:
        table.add_row(
            str(plan.world_size),
            str(plan.workers_used),
            split_text(plan.shares),
            str(plan.max_micro_batch),
            str(plan.accumulation_steps),
            str(plan.step_cost),
            f"{plan.efficiency:.1%}",
            "; ".join(plan.warnings),
        )
    return table


def plan_json(plans: Iterable[Plan]) -> str:
    """A list of objects; the keys are an interface (README, "The plan as JSON")."""
    return json.dumps([_plan_object(plan) for plan in plans], indent=1)


def _plan_object(plan: Plan) -> dict[str, object]:
    return {
        "world_size": plan.world_size,
        "workers_used": plan.workers_used,
        "global_batch": plan.global_batch,
        "accumulation_steps": plan.accumulation_steps,
        "max_micro_batch": plan.max_micro_batch,
        "step_cost": plan.step_cost,
        "shares": [list(share) for share in plan.shares],
        "efficiency": plan.efficiency,
        "mode": plan.mode,
        "digest": plan.digest,
        "warnings": list(plan.warnings),
    }
