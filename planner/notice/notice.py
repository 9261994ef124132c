"""What a look at a cloud's metadata can bring: nothing, a notice, or an answer that is no answer."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

_EXCERPT = 80


@dataclass(frozen=True, kw_only=True)
class Notice:
    """The cloud will take this machine."""

    what: str
    """in the cloud's own words"""
    deadline_s: float
    """Unix seconds; infinite where it is advice, and nobody says when"""

    @property
    def is_advice(self) -> bool:
        """Whether the cloud only thinks that it might."""
        return self.deadline_s == math.inf


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """There was no answer, or one that the cloud's documentation does not have."""

    what: str
    """the kind of it, the same words each time"""
    detail: str = ""
    is_outage: bool = False
    """the server is busy or silent: it is asked less often"""


Seen = Notice | Trouble | None
"""what one look brings; None: all is well"""


class Cloud(Protocol):
    """One cloud's metadata server, as seen from one of its machines."""

    name: str
    poll_s: float
    """how often it is asked"""

    def answers(self) -> bool:
        """Whether the endpoint is this cloud's.

        Raises:
            Unreachable: nobody answers there.
        """

    def look(self, now_s: float) -> Seen:
        """Ask once. `now_s` is in Unix seconds.

        Raises:
            Unreachable: nobody answers there.
        """


def trouble_of(status: int) -> Trouble:
    """What a status that is neither an answer nor "there is none" means."""
    return Trouble(what=f"HTTP status {status}", is_outage=status >= 500 or status == 429)


def malformed(body: bytes) -> Trouble:
    """An answer that is not as documented."""
    return Trouble(what="a malformed answer", detail=repr(body[:_EXCERPT]))


def json_object(body: bytes) -> dict[str, Any]:
    """The object in `body`; empty if there is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def unix_seconds(text: object) -> float | None:
    """A moment in ISO 8601 or as in HTTP's headers; without a zone it is UTC. None if it is neither."""
    if not isinstance(text, str):
        return None
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
    return None
