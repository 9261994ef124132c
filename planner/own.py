"""For training loops of your own: `from planner.own import Run`. An example is in `jobs/own_loop.py`."""

from planner.runner.job_file import read_job
from planner.train.custom_loop import Run, attached
from planner.train.step import Step

__all__ = ["Run", "Step", "attached", "read_job"]
