"""What your own training loop imports: `from planner.own import Run`. `jobs/own_loop.py` is an example."""

from planner.runner.job_argument import read_job
from planner.train.custom_loop import Run, attached
from planner.train.optimizer_step import Step

__all__ = ["Run", "Step", "attached", "read_job"]
