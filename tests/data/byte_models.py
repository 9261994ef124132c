"""Models over bytes, by their context alone."""

from planner.job import GptModel


def gpt(context):
    """The smallest model that has it."""
    return GptModel(kind="gpt", layers=1, width=2, heads=1, context=context)
