"""One function makes the sentence of each kind of event. It is found by the event's type."""

from collections.abc import Iterable
from functools import singledispatch

from planner.events.event import Event


@singledispatch
def text_of(event: Event) -> str:
    """The event as text for people. Modules of this room register a function for each kind.

    Raises:
        NotImplementedError: no function is registered for its kind.
    """
    raise NotImplementedError(f"no sentence for the event {event.name}")


def text_of_all(events: Iterable[Event]) -> str:
    """The events as one text, each once. Empty if there are none."""
    return "; ".join(text_of(event) for event in dict.fromkeys(events))
