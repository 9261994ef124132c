"""From batch sizes and a world size to one `Plan`. Pure and deterministic. Standard library only.

This package does not know time, randomness, files, torch or Ray. It takes numbers and returns values.
"""

from planner.plan.assignment import Assignment, SampleLengths, assign_balanced, assign_bitwise, lower_bound
from planner.plan.capacity_history import CapacityAt
from planner.plan.factory import BatchSizes, make_plan
from planner.plan.growth import KEPT_PROCESSES, NEW_PROCESSES, ResizeCost
from planner.plan.interval import checkpoint_interval
from planner.plan.node_packing import Resources, WorkerRange, worker_range, workers_on_node
from planner.plan.plan import Plan
from planner.plan.revise import Decision, Situation, revise, useful_workers, worth_asking
from planner.plan.speed import Speeds
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
    "KEPT_PROCESSES",
    "NEW_PROCESSES",
    "Assignment",
    "BatchSizes",
    "CapacityAt",
    "Decision",
    "Plan",
    "ResizeCost",
    "Resources",
    "SampleLengths",
    "Situation",
    "Speeds",
    "WorkerRange",
    "assign_balanced",
    "assign_bitwise",
    "checkpoint_interval",
    "first_collectives_s",
    "longest_collective_s",
    "longest_silence_s",
    "longest_unanswered_s",
    "lower_bound",
    "make_plan",
    "revise",
    "useful_workers",
    "worker_range",
    "workers_on_node",
    "worth_asking",
]
