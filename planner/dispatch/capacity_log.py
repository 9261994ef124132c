"""Says when the nodes for a run have changed, so that the ledger has them (`planner.events.capacity`)."""

import math

from planner.elastic.view import View
from planner.events.capacity import Capacity, Leaving

# Of Ray's 56. So the ids of a thousand nodes differ.
_DIGITS = 10


class CapacityLog:
    """Compares each view with the last one."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()
        self._told: tuple[object, ...] = ()

    def forget(self) -> None:
        """Tell it again at the next view: a group that ended may not have written the last events."""
        self._told = ()

    def changed(self, view: View, time_s: float) -> Capacity | None:
        """The nodes of a view, if they are not those that were told last. `time_s` is in seconds since the epoch."""
        nodes = frozenset(node for node, places in view.room.items() if places)
        self._known |= nodes
        # Nodes that never held a worker may have notice too.
        leaving = frozenset(view.draining) & (self._known | frozenset(view.nodes))
        places = sum(view.room.values())
        if (nodes, leaving, places) == self._told:
            return None
        self._told = (nodes, leaving, places)
        told = tuple(_leaving(node, view.draining[node]) for node in sorted(leaving))
        short = tuple(node[:_DIGITS] for node in sorted(nodes))
        return Capacity(time_s=time_s, nodes=short, places=places, leaving=told)


def _leaving(node: str, left_s: float) -> Leaving:
    return Leaving(node=node[:_DIGITS], left_s=left_s if left_s < math.inf else None)
