"""Chooses where a `bitwise` plan keeps its integer gradient sums, by memory."""

from typing import Literal

from planner.plan.plan import Plan

INT64_BYTES = 8
# Of the memory that is free after the weights are loaded. Activations and the caching allocator need the rest.
_MOST_OF_FREE = 0.25


def accumulator_placement(plan: Plan, num_parameters: int, free_bytes: int) -> Literal["local", "sharded"]:
    """Where a `bitwise` plan keeps its integer sums between rounds. Both choices give the same bits.

    local     8 bytes per parameter on every worker, one reduce-scatter of 8 bytes per parameter a step
    sharded   8 / W bytes per parameter, A reduce-scatters a step

    `local` if it fits into a quarter of `free_bytes` and saves time (A > 1 and W > 1), else `sharded`.
    """
    saves = plan.accumulation_steps > 1 and plan.world_size > 1
    return "local" if saves and INT64_BYTES * num_parameters <= _MOST_OF_FREE * free_bytes else "sharded"
