"""The largest and smallest numbers that planner accepts, for job files (`planner.job`) and plans (`planner.plan`)."""

MAX_GLOBAL_BATCH = 2**20
MAX_MICRO = 4096
MAX_WORKERS = 65_536
LEAST_RESOURCE = 0.0001
"""the smallest amount of a resource that a worker can take. Ray counts in ten-thousandths (`node_packing.py`)"""
