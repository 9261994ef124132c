"""The results of one look at a cloud's metadata: nothing, a notice, or trouble (no usable answer)."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from planner.base import json_text

_EXCERPT = 80


@dataclass(frozen=True, kw_only=True)
class Notice:
    """The cloud will take this machine."""

    what: str
    """the kind of notice, in the cloud's terms"""
    deadline_s: float
    """Unix seconds, infinite for advice, which has no deadline"""

    @property
    def is_advice(self) -> bool:
        """Whether the cloud only warns that it may take the machine."""
        return self.deadline_s == math.inf


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """There was no answer, or one that the cloud does not document."""

    what: str
    """the kind of trouble. The agent reports each kind once."""
    detail: str = ""
    is_outage: bool = False
    """the server is busy or silent, so the agent polls less often"""


Seen = Notice | Trouble | None
"""the result of one look. None: no notice"""


class Cloud(Protocol):
    """One cloud's metadata server, as seen from one of its machines."""

    name: str
    poll_s: float
    """seconds between two looks"""

    def answers(self) -> bool:
        """Whether the endpoint is this cloud's.

        Raises:
            Unreachable: there is no answer.
        """

    def look(self, now_s: float) -> Seen:
        """Ask once. `now_s` is in Unix seconds.

        Raises:
            Unreachable: there is no answer.
        """


def trouble_of(status: int) -> Trouble:
    """The trouble for an unexpected HTTP status. 429 and 5xx count as an outage."""
    return Trouble(what=f"HTTP status {status}", is_outage=status >= 500 or status == 429)


def malformed(body: bytes) -> Trouble:
    """The trouble for an answer that does not match the cloud's documentation."""
    return Trouble(what="a malformed answer", detail=repr(body[:_EXCERPT]))


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`, empty if there is none."""
    try:
        return json_text.json_object(body)
    except json_text.NoJson:
        return {}


def unix_seconds(text: object) -> float | None:
    """Unix seconds of a time in ISO 8601 or in the format of HTTP headers. UTC if no zone is given, None if neither."""
    if not isinstance(text, str):
        return None
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
    return None
