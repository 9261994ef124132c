"""The numbers that planner serves. `planner.job` checks job files by them, and `planner.plan` its arguments."""

MAX_GLOBAL_BATCH = 2**20
MAX_MICRO = 4096
MAX_WORKERS = 65_536
LEAST_RESOURCE = 0.0001
"""of an amount that a worker takes: Ray counts in ten-thousandths (`planner.plan.fit`)"""
