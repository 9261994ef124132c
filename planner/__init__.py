"""Keeps a training recipe's global batch exact on whatever GPUs Ray grants."""

from planner.base import version

__version__ = version.VERSION
