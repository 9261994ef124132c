"""What an event is, and how its facts are stored and read back."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, dataclass_transform, get_args, get_origin, get_type_hints

Facts = Mapping[str, Any]
"""name -> JSON value. A nested event is an object with its name under `event`"""

KINDS: dict[str, type["Event"]] = {}
"""name -> class. A class is entered when its module is imported"""


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a run, or a reason for it. Each subclass is one kind, and its fields are the facts.

    A subclass is a frozen dataclass, without a decorator of its own. A field is a `str`, an `int`, a finite `float`, a
    `bool`, a `Literal`, an `Event`, a tuple of one of these, or None.
    """

    name: ClassVar[str]
    """how the kind is stored. It never changes"""

    def __init_subclass__(cls, *, name: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        if name in KINDS and KINDS[name].__qualname__ != cls.__qualname__:
            raise ValueError(f"two kinds of event are named {name}")
        cls.name = name
        KINDS[name] = dataclass(frozen=True, kw_only=True)(cls)


def facts_of(event: Event) -> dict[str, Any]:
    """The event's facts as JSON values."""
    return {field.name: _stored(getattr(event, field.name)) for field in fields(event)}


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


def _stored(value: object) -> Any:
    if isinstance(value, Event):
        return {"event": value.name, **facts_of(value)}
    return [_stored(each) for each in value] if isinstance(value, tuple) else value


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
