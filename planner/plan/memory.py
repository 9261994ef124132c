"""What a choice costs in bytes."""

from typing import Literal

from planner.plan.plan import Plan

INT64_BYTES = 8
# Of what is free when the weights are in place; activations and the caching allocator want the rest.
_MOST_OF_FREE = 0.25


def accumulator_device(plan: Plan, num_parameters: int, free_bytes: int) -> Literal["local", "sharded"]:
    """Where a `bitwise` plan keeps its integer sums between rounds. The result is the same, to the bit.

    local     8 bytes per parameter on every worker, one reduce-scatter of 8 bytes per parameter a step
    sharded   8 / W bytes per parameter, A reduce-scatters a step

    Local where it fits into a quarter of the free memory, and where it saves anything: A > 1 and W > 1.
    """
    saves = plan.accumulation_steps > 1 and plan.world_size > 1
    return "local" if saves and INT64_BYTES * num_parameters <= _MOST_OF_FREE * free_bytes else "sharded"
