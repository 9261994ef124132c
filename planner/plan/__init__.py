"""From batch sizes, a world size and facts to one `Plan`: pure, deterministic, the standard library only.

The room does not know time, randomness, files, torch or Ray; it is handed numbers and returns values.
"""

from planner.plan.choose import BatchSizes, Facts, batch_sizes, choose
from planner.plan.plan import Plan

__all__ = ["BatchSizes", "Facts", "Plan", "batch_sizes", "choose"]
