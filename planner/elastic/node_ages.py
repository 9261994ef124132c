"""Since when each node has been there, and what a loss would have left of a group on the oldest ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True, kw_only=True)
class NodeAges:
    """The nodes with room for workers of this job, as last seen."""

    since_s: Mapping[str, float] = field(default_factory=dict)
    """node -> since when it has been there"""

    def seen(self, room: Mapping[str, int], now_s: float) -> Self:
        """A copy that knows the nodes that are there now. Returns `self` if they are the same."""
        if room.keys() == self.since_s.keys():
            return self
        return type(self)(since_s={node: self.since_s.get(node, now_s) for node in room})

    def steady(self, room: Mapping[str, int]) -> int | None:
        """The workers that there is room for on nodes older than each one that has gone. None if none has gone."""
        gone = [since_s for node, since_s in self.since_s.items() if node not in room]
        if not gone:
            return None
        return sum(count for node, count in room.items() if self.since_s.get(node, float("inf")) < min(gone))
