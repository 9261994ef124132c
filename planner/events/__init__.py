"""What happens in a run, as values: a frozen class for each kind of event, with its facts and their units. No text.

All kinds are imported here, so that `event_of` knows each that is on record.
"""

from planner.events import (  # noqa: F401
    failures,
    outlook,
    resuming,
    saves,
    sizing,
    stopping,
    training,
)
