"""A wait for nodes, in which no worker group could start."""

from dataclasses import dataclass

from planner.events.event import Event


@dataclass(frozen=True, kw_only=True)
class Waited(Event, name="waited"):
    """No group could start before this one."""

    waited_s: float
    """seconds in which there was room for fewer workers than `workers.min`"""
