"""An event that is only a text, where a test needs any event."""

from planner.events.event import Event
from planner.wording.sentence import text_of


class Message(Event, name="message"):
    """A text for people."""

    text: str


@text_of.register
def _message(event: Message) -> str:
    return event.text
