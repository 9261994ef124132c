"""Sentences of `planner.events.capacity`."""

from planner.base.text import counted, duration
from planner.events.capacity import Capacity, Leaving
from planner.wording.sentence import text_of


@text_of.register
def _leaving(event: Leaving) -> str:
    left = " without a deadline" if event.left_s is None else f", {duration(event.left_s)} left"
    return f"node {event.node} has notice{left}"


@text_of.register
def _capacity(event: Capacity) -> str:
    leaving = f", {counted(len(event.leaving), 'more node')} with notice" if event.leaving else ""
    return f"the cluster has room for {counted(event.places, 'worker')} on {counted(len(event.nodes), 'node')}{leaving}"
