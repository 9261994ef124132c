"""The on-demand floor: `workers.min` places on nodes that no cloud takes back (`workers.min_on`).

A launch begins only when these places are there. After that it also goes on without them, on whatever nodes there are:
that is better than to stand still. Each new group takes the on-demand places first.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from planner.elastic.states import ControllerContext
from planner.elastic.view import View
from planner.events.stopping import FloorMissing, WaitsForFloor


def waits_for_floor(known: ControllerContext, view: View, now_s: float) -> WaitsForFloor | None:
    """What a launch waits for that cannot begin yet. None if it has begun, or the on-demand places are there."""
    floor, usable = known.rules.floor, known.usable(view.room, now_s)
    room = sum(usable.values())
    on_demand = sum(count for node, count in usable.items() if node in view.on_demand)
    if known.has_begun or on_demand >= floor:
        return None
    return WaitsForFloor(room=on_demand, least=floor, other_room=room - on_demand, has_labels=bool(view.markets))


def floor_missing(nodes: Sequence[str], on_demand: AbstractSet[str], floor: int) -> FloorMissing | None:
    """What to tell of a group whose workers are on `nodes`. None if it has its on-demand places."""
    found = sum(node in on_demand for node in nodes)
    return FloorMissing(on_demand=found, least=floor) if found < floor else None


def num_on_demand(kept: Sequence[str], count: int, room: Mapping[str, int], on_demand: AbstractSet[str]) -> int:
    """How many of `count` more workers get a place on an on-demand node: as many as are free.

    Args:
        kept: the node of each worker that has a place already.
        count: workers that get one.
        room: node -> workers, those of `kept` included.
        on_demand: the on-demand nodes.
    """
    taken = Counter(kept)
    return min(count, sum(max(room[node] - taken[node], 0) for node in room if node in on_demand))


def kept_workers(
    nodes: Sequence[str], size: int, room: Mapping[str, int], on_demand: AbstractSet[str], floor: int
) -> list[int]:
    """The workers that go on in a group of `size`, by their places in `nodes`. All if they are few enough.

    Those on on-demand nodes go first. If fewer than `floor` are there, places stay free for newcomers on such nodes.
    """
    ours = [number for number, node in enumerate(nodes) if node in on_demand][:size]
    others = [number for number, node in enumerate(nodes) if node not in on_demand]
    missing = max(min(floor, size) - len(ours), 0)
    to_come = num_on_demand([nodes[number] for number in ours], missing, room, on_demand)
    return sorted([*ours, *others[: size - len(ours) - to_come]])
