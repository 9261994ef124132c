"""An event that is only a text: what a part of planner, or the user's data module, says by itself."""

from dataclasses import dataclass

from planner.events.event import Event


@dataclass(frozen=True, kw_only=True)
class Message(Event, name="message"):
    """A text for people."""

    text: str
