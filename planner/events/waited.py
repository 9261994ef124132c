"""Time before a generation in which there was room for too few workers."""

from dataclasses import dataclass

from planner.events.event import Event


@dataclass(frozen=True, kw_only=True)
class Waited(Event, name="waited"):
    """No group could start: there was room for fewer workers than `workers.min`."""

    waited_s: float
