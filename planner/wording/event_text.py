"""`text_of(event)` and `text_of_all(events)`: import them from here, where all kinds have their sentences."""

from planner.events.message import Message
from planner.wording import failures, outlook, sizing, stopping, training_events  # noqa: F401  registers their sentences
from planner.wording.sentence import text_of, text_of_all

__all__ = ["text_of", "text_of_all"]


@text_of.register
def _message(event: Message) -> str:
    return event.text
