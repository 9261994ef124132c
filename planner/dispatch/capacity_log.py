"""Says when the nodes for a run have changed, so that the ledger has them (`planner.events.capacity`)."""

import math

from planner.elastic.view import View
from planner.events.capacity import Capacity, Leaving

# Of Ray's 56. So the ids of a thousand nodes differ.
_DIGITS = 10
# Room may change at every look, because other jobs come and go. Without a limit, that would fill the ledger.
_AT_ONCE, _NEXT_AFTER_S = 40, 30.0


class CapacityLog:
    """Compares each view with the last one."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()
        self._told: tuple[object, ...] = ()
        self._left, self._filled_s = 0.0, -math.inf

    def forget(self) -> None:
        """Tell it again at the next view: a group that ended may not have written the last events."""
        self._told = ()

    def changed(self, view: View, time_s: float) -> Capacity | None:
        """The nodes of a view, if they are not those that were told last. `time_s` is in seconds since the epoch.

        After many changes in a short time, several are told together.
        """
        nodes = frozenset(node for node, places in view.room.items() if places)
        self._known |= nodes
        # Nodes that never held a worker may have notice too.
        leaving = frozenset(view.draining) & (self._known | frozenset(view.nodes))
        places = sum(view.room.values())
        if (nodes, leaving, places) == self._told:
            return None
        if self._told and not self._may_tell(time_s):
            return None
        self._told = (nodes, leaving, places)
        told = tuple(_leaving(node, view.draining[node]) for node in sorted(leaving))
        short = tuple(node[:_DIGITS] for node in sorted(nodes))
        return Capacity(time_s=time_s, nodes=short, places=places, leaving=told)

    def _may_tell(self, time_s: float) -> bool:
        passed_s = max(time_s - self._filled_s, 0.0)  # the clock may have been set back
        self._left, self._filled_s = min(self._left + passed_s / _NEXT_AFTER_S, _AT_ONCE), time_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


def _leaving(node: str, left_s: float) -> Leaving:
    return Leaving(node=node[:_DIGITS], left_s=left_s if left_s < math.inf else None)
