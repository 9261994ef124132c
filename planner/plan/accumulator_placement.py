"""Chooses where a worker keeps its gradient sums between rounds, by memory."""

from typing import Literal

from planner.base.disk import size_text
from planner.plan.plan import Plan

FLOAT_BYTES, INTEGER_BYTES = 4, 8
"""per parameter, of sums in float32 and of `bitwise` sums in int64"""
# Of the memory that is free after the weights are loaded. Activations and the caching allocator need the rest.
_MOST_OF_FREE = 0.25


def accumulator_placement(
    plan: Plan, num_parameters: int, free_bytes: int, element_bytes: int
) -> Literal["local", "sharded"]:
    """Where a worker keeps its sums between rounds. The choice affects memory and speed, and the rounding of floats.

    local     whole sums on every worker, one reduce-scatter a step
    sharded   1 / W of the sums, A reduce-scatters a step

    `local` if it fits into a quarter of `free_bytes` and saves time (A > 1 and W > 1), else `sharded`.
    """
    saves = plan.accumulation_steps > 1 and plan.world_size > 1
    return "local" if saves and element_bytes * num_parameters <= _MOST_OF_FREE * free_bytes else "sharded"


def placement_text(element_bytes: int, num_parameters: int | None) -> str:
    """How the choice is made, for dry runs. None: the number of trained parameters is not known."""
    each = f"{element_bytes} bytes per trained parameter"
    needed = f"{each} are" if num_parameters is None else f"{size_text(element_bytes * num_parameters)} ({each}) are"
    return (
        f"Workers exchange them once per step where {needed} at most a quarter of the free memory, else after every "
        "round."
    )
