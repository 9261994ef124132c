"""`text_of(event)`: import it from here, where all kinds have their sentences."""

from planner.events.message import Message
from planner.wording import elastic_events, resuming, training_events  # noqa: F401  registers their sentences
from planner.wording.sentence import text_of

__all__ = ["text_of"]


@text_of.register
def _message(event: Message) -> str:
    return event.text
