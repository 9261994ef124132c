"""Durations, shares and notices as people write them: `90s`, `2h`, `0.3`, `30s:0.5`."""

import math
import re

from planner.errors import UserError
from planner.simulation.lives import NO_NOTICE, Notice

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|m|min|h|d|)")
_MOST_S = 1e9


def parse_duration(text: str, name: str) -> float:
    """Seconds of a text such as `90`, `90s`, `5m`, `2h` or `1.5d`. `name` says in errors what it is.

    Raises:
        UserError: it is no duration.
    """
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else math.inf
    if seconds > _MOST_S:
        raise UserError(f"{name} is {text!r}. Write a duration such as 90s, 5m, 2h or 1d")
    return seconds


def parse_share(text: str, name: str) -> float:
    """A share from 0 to 1. `name` says in errors what it is.

    Raises:
        UserError: it is no such number.
    """
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise UserError(f"{name} is {text!r}. Write a number from 0 to 1, such as 0.3")
    return share


def parse_notice(text: str | None, name: str = "--notice") -> Notice:
    """The notice of `30s:0.5`: half of the losses are announced 30 s before. `120s` means all losses.

    Raises:
        UserError: it is no notice.
    """
    if text is None:
        return NO_NOTICE
    seconds, colon, share = text.partition(":")
    return Notice(
        seconds=parse_duration(seconds, f"{name}, before the colon," if colon else name),
        share=parse_share(share, f"{name}, behind the colon,") if colon else 1.0,
    )
