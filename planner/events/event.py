"""What an event is, and how its facts are stored. `kinds` reads them back."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, dataclass_transform

KINDS: dict[str, type["Event"]] = {}
"""name -> class. A class is entered when its module is imported: `kinds` has all"""


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


def _stored(value: object) -> Any:
    if isinstance(value, Event):
        return {"event": value.name, **facts_of(value)}
    return [_stored(each) for each in value] if isinstance(value, tuple) else value
