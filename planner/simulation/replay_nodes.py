"""From a run's groups to the nodes that it had: by their record in the ledger, else by what groups tell."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from statistics import median

from planner.events.capacity import Capacity
from planner.events.sizing import PlacesUnused, Resizes
from planner.events.stopping import Notice
from planner.simulation.trace import MOST_CHANGES, NodeEvent, NodesAt, Trace
from planner.story.capacity import GroupSpan, Told

# At one time losses come first, as in the simulation.
_ORDER = {"remove": 0, "add": 1, "notice": 2}


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The nodes of a run."""

    events: tuple[NodeEvent, ...]
    """when they came, went and had notice, by rising time"""
    is_exact: bool
    """whether all launches have them on record"""
    workers: int
    """that a node holds. 1 if that is not on record"""
    is_even: bool
    """whether all hold as many. Else `workers` is the mean"""


def nodes_of(groups: Sequence[GroupSpan], clock: Callable[[str, float], float]) -> Nodes:
    """The nodes of a run's groups.

    Args:
        groups: oldest first.
        clock: (launch, seconds since the epoch) -> seconds of the trace.
    """
    found: list[NodeEvent] = []
    alive, are_exact = list[str](), list[bool]()
    for launch_id, members in groupby(groups, key=lambda group: group.launch_id):
        launch = list(members)
        seen = sorted(_seen(launch), key=lambda each: each.time_s)
        are_exact.append(bool(seen))
        there = _There(alive)
        if seen:
            _follow_record(there, seen, launch)
        else:
            _follow_groups(there, launch)
        found += [replace(event, time_s=clock(launch_id, event.time_s)) for event in there.events]
        alive = there.alive
    events = sorted(found, key=lambda event: (event.time_s, _ORDER[event.event]))
    workers, is_even = _workers(list(_seen(groups)))
    return Nodes(events=tuple(events), is_exact=all(are_exact), workers=workers, is_even=is_even)


def trace_of(events: Sequence[NodeEvent], end_s: float) -> Trace:
    """The trace of these events, with the numbers of nodes that follow from them."""
    rows, number = [NodesAt(time_s=0.0, nodes=0)], 0
    changes = (event for event in events if event.event != "notice")
    for time_s, found in groupby(changes, key=lambda event: event.time_s):
        number += sum(1 if event.event == "add" else -1 for event in found)
        if rows[-1].time_s == time_s:
            rows.pop()
        rows.append(NodesAt(time_s=time_s, nodes=number))
    return Trace(rows=(*rows, NodesAt(time_s=end_s, nodes=number)), events=tuple(events))


def leads_of(old: GroupSpan) -> list[float]:
    """Seconds for which newcomers started beside a group, as one entry. Empty if that is not on record."""
    began = [told.time_s for told in old.told if isinstance(told.event, Resizes)]
    return [max(old.end_s - began[-1], 0.0)] if began else []


class _There:
    """The nodes that are there while time passes, oldest first."""

    def __init__(self, alive: Sequence[str]) -> None:
        # A dict, not a list: a large cluster may lose thousands of nodes at once.
        self._alive, self.told = dict.fromkeys(alive), set[str]()
        self.events: list[NodeEvent] = []

    def add(self, time_s: float, node: str) -> None:
        """One more node."""
        self._alive[node] = None
        self.events.append(NodeEvent(time_s=time_s, event="add", node=node))

    def remove(self, time_s: float, node: str) -> None:
        """The node goes."""
        del self._alive[node]
        self.told.discard(node)
        self.events.append(NodeEvent(time_s=time_s, event="remove", node=node))

    def tell(self, time_s: float, node: str) -> None:
        """The node gets notice."""
        if node not in self.told:
            self.told.add(node)
            self.events.append(NodeEvent(time_s=time_s, event="notice", node=node))

    @property
    def alive(self) -> list[str]:
        """The nodes."""
        return list(self._alive)

    @property
    def steady(self) -> list[str]:
        """The nodes without notice."""
        return [node for node in self._alive if node not in self.told]


# -- by the record of nodes


def _seen(groups: Sequence[GroupSpan]) -> Iterator[Capacity]:
    for group in groups:
        yield from (told.event for told in group.told if isinstance(told.event, Capacity))


def _workers(seen: Sequence[Capacity]) -> tuple[int, bool]:
    """The workers that a node holds, and whether all hold as many."""
    found = [(each.places, len(each.nodes)) for each in seen if each.nodes]
    if not found:
        return 1, True
    number = max(round(median(places / nodes for places, nodes in found)), 1)
    return number, all(places == nodes * number for places, nodes in found)


def _follow_record(there: _There, seen: Sequence[Capacity], launch: Sequence[GroupSpan]) -> None:
    """When the nodes came and went.

    A node that was lost with a group went when the group's last step was done: the record is of a later look. Other
    nodes with notice go when it is over. The cloud may take them as soon as the group has left them, and another group
    would not have.
    """
    losses = [(old.end_s, new.start_s) for old, new in pairwise(launch) if new.after_loss]
    deadlines: dict[str, float] = {}
    # The first record is of the launch's begin, whenever that was seen.
    for each in (replace(seen[0], time_s=-math.inf), *seen[1:]):
        now = dict.fromkeys((*each.nodes, *(leaving.node for leaving in each.leaving)))
        for node in [node for node in there.alive if node not in now]:
            ended = [end_s for end_s, start_s in losses if end_s < each.time_s <= start_s]
            there.remove(ended[0] if ended else max(deadlines.get(node, 0.0), each.time_s), node)
        known = set(there.alive)
        for node in now:
            if node not in known:
                there.add(each.time_s, node)
        for leaving in each.leaving:
            there.tell(each.time_s, leaving.node)
            deadlines[leaving.node] = each.time_s + (leaving.left_s or 0.0)


# -- by the groups


def _follow_groups(there: _There, launch: Sequence[GroupSpan]) -> None:
    """Groups, unused places, losses and notices say how many nodes there must have been."""
    guess = _Guess(there)
    for old, group in pairwise([None, *launch]):
        assert group is not None
        began_s = -math.inf if old is None else guess.between(old, group)  # where the launch begins
        unused = [told.event.places for told in group.told if isinstance(told.event, PlacesUnused)]
        guess.have(began_s, max(group.workers, *unused[:1], 0))
        for told in group.told:
            guess.hear(told, group)
    guess.until(launch[-1].end_s)


class _Guess:
    """A loss or a notice hits the oldest nodes, which the group has. What else changes are the newest ones."""

    def __init__(self, there: _There) -> None:
        self._there = there
        self._leaving: list[tuple[float, str]] = []
        self._number = len(there.alive)

    def until(self, time_s: float) -> None:
        """Nodes whose notice is over by then go."""
        due = sorted(each for each in self._leaving if each[0] <= time_s)
        self._leaving = [each for each in self._leaving if each[0] > time_s]
        for left_s, node in due:
            self._there.remove(left_s, node)

    def have(self, time_s: float, number: int) -> None:
        """There are so many nodes without notice."""
        self.until(time_s)
        steady, number = self._there.steady, min(number, MOST_CHANGES)  # a forged ledger may have any number
        for node in reversed(steady[number:]):
            self._there.remove(time_s, node)
        for _ in range(number - len(steady)):
            self._number += 1
            self._there.add(time_s, f"node{self._number}")

    def between(self, old: GroupSpan, group: GroupSpan) -> float:
        """What happened between two groups. Returns when the nodes of the second one were there."""
        self.until(old.end_s)
        for node in self._there.steady[: group.after_loss]:
            self._there.remove(old.end_s, node)
        if group.waited_s:
            self.have(old.end_s, 0)
        leads = leads_of(old) if group.workers > old.workers else []
        return old.end_s - leads[0] if leads else group.header_s

    def hear(self, told: Told, group: GroupSpan) -> None:
        """Take an event of a group."""
        event = told.event
        if isinstance(event, PlacesUnused):
            self.have(told.time_s, event.places)
        elif isinstance(event, Notice):
            self.until(told.time_s)
            # Without a deadline, nobody knows longer than the group.
            left_s = event.left_s or max(group.end_s - told.time_s, 0.0)
            for node in self._there.steady[: event.leaving]:
                self._there.tell(told.time_s, node)
                self._leaving.append((told.time_s + left_s, node))
            self.have(told.time_s, event.room)
