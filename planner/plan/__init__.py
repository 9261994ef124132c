"""From batch sizes and a world size to one `Plan`. Pure and deterministic. Standard library only.

This package does not know time, randomness, files, torch or Ray. It takes numbers and returns values. The names here
are those that most rooms use. Whether to resize (`revise`), `speed` and `interval` are imported from their modules.
"""

from planner.plan.assignment import Assignment, SampleLengths, assign_balanced, assign_bitwise, lower_bound
from planner.plan.factory import BatchSizes, make_plan
from planner.plan.node_packing import Resources, WorkerRange, worker_range, workers_on_node
from planner.plan.plan import Plan
from planner.plan.timeouts import (
    FIRST_COLLECTIVES_S,
    FIRST_ROUND_S,
    first_collectives_s,
    longest_collective_s,
    longest_silence_s,
    longest_unanswered_s,
)

__all__ = [
    "FIRST_COLLECTIVES_S",
    "FIRST_ROUND_S",
    "Assignment",
    "BatchSizes",
    "Plan",
    "Resources",
    "SampleLengths",
    "WorkerRange",
    "assign_balanced",
    "assign_bitwise",
    "first_collectives_s",
    "longest_collective_s",
    "longest_silence_s",
    "longest_unanswered_s",
    "lower_bound",
    "make_plan",
    "worker_range",
    "workers_on_node",
]
