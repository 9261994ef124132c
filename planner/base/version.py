"""The version of planner: of the distribution, and on record in every generation and export."""

__version__ = "0.1.0"
