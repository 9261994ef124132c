"""`text_of(event)` and `text_of_all(events)`: import them from here, where all kinds have their sentences."""

from planner.events.message import Message
from planner.wording import (  # noqa: F401  registers their sentences
    failures,
    outlook,
    resuming,
    sizing,
    stopping,
    training_events,
)
from planner.wording.sentence import text_of, text_of_all

__all__ = ["text_of", "text_of_all"]


@text_of.register
def _message(event: Message) -> str:
    return event.text
