"""All kinds of events, and how a stored one is read back.

It imports every kind. So a command that only makes some events does not import this module.
"""

import sys
from collections.abc import Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from planner.events import (  # noqa: F401  each enters its kinds
    capacity,
    failures,
    outlook,
    resuming,
    saves,
    sizing,
    stopping,
    training,
)
from planner.events.event import KINDS, Event

__all__ = ["KINDS", "Facts", "event_of"]

Facts = Mapping[str, Any]
"""name -> JSON value. A nested event is an object with its name under `event`"""


def event_of(name: str, facts: Facts) -> Event:
    """The event that was stored with this name and these facts.

    Raises:
        ValueError: there is no such kind, or the facts are not those of its kind.
    """
    if name not in KINDS:
        raise ValueError(f"no event is named {name!r}")
    kind = KINDS[name]
    types = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    if set(facts) != set(names):
        raise ValueError(f"the event {name} has the facts {', '.join(names)}, not {', '.join(facts)}")
    return kind(**{each: _read(facts[each], types[each], f"{name}.{each}") for each in names})


def _read(value: Any, wanted: Any, where: str) -> Any:
    """A stored value as the type that its field has."""
    if get_origin(wanted) in (Union, UnionType):
        if value is None and NoneType in get_args(wanted):
            return None
        (wanted,) = (each for each in get_args(wanted) if each is not NoneType)
    if get_origin(wanted) is tuple and isinstance(value, list):
        return tuple(_read(each, get_args(wanted)[0], where) for each in value)
    if get_origin(wanted) is Literal and value in get_args(wanted):
        return value
    if isinstance(wanted, type) and issubclass(wanted, Event) and isinstance(value, dict):
        event = event_of(str(value.get("event")), {key: each for key, each in value.items() if key != "event"})
        if isinstance(event, wanted):
            return event
    if wanted is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if type(value) is wanted:
        return value
    raise ValueError(f"{where} is {value!r}")
