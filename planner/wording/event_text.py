"""`text_of(event)` and `text_of_all(events)`: import them from here, where all kinds have their sentences."""

from planner.wording import (  # noqa: F401  registers their sentences
    capacity,
    failures,
    outlook,
    resuming,
    saves,
    sizing,
    stopping,
    training,
)
from planner.wording.sentence import text_of, text_of_all

__all__ = ["text_of", "text_of_all"]
