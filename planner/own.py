"""For training loops of your own: `from planner.own import Run`. See `planner.train.own` and `jobs/own_loop.py`."""

from planner.files import read_job
from planner.train.own import Run, attached
from planner.train.step import Step

__all__ = ["Run", "Step", "attached", "read_job"]
