"""How many nodes a failure has cost. Ray finds dead nodes one by one, some only after the next group has started."""

from dataclasses import dataclass, replace
from typing import Self

from planner.elastic.view import View
from planner.events.event import Event
from planner.events.failures import NodesLost

# Ray's health check takes up to a minute by its defaults. A node that goes later is no part of the same loss.
_WATCH_S = 60.0
# Nodes that die together are found within a few periods of that check (3 s). One further note tells of all of them.
_SETTLE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class NodeLosses:
    """The nodes that were lost with the last group that failed, and what was told of them."""

    there: frozenset[str] = frozenset()
    """nodes of the last view, with or without workers of this job"""
    watched: frozenset[str] = frozenset()
    """nodes that were there when the group failed, and that are not known to be lost"""
    gone: frozenset[str] = frozenset()
    """nodes lost since the group failed"""
    from_memory: bool = False
    """whether the next group looks for copies in memory"""
    failed_s: float = 0.0
    found_s: float = 0.0
    """when the last lost node was found"""
    event: NodesLost | None = None
    """the newest event. None if no node is known to be lost"""
    num_told: int = 0
    """lost nodes in the events so far"""
    num_written: int = 0
    """lost nodes in events that can no longer be changed"""
    has_started: bool = True
    """whether a group was started since the last failure, so that the next failure is another loss"""

    def after_start(self) -> Self:
        """A copy after a group was started."""
        return replace(self, has_started=True)

    def after_failure(self, dead: frozenset[str], now_s: float, *, from_memory: bool) -> Self:
        """A copy after a group failed or could not start."""
        before = type(self)(there=self.there, from_memory=from_memory, has_started=False) if self.has_started else self
        gone = before.gone | dead
        return replace(
            before,
            watched=(before.watched | self.watched | self.there) - gone,
            gone=gone,
            failed_s=now_s,
            found_s=now_s if dead else before.found_s,
        )

    def seen(self, view: View, now_s: float) -> Self:
        """A copy that knows the nodes of this view. A node that had notice before it went is not counted."""
        there = (frozenset(view.room) | frozenset(view.nodes)) - view.dead
        if now_s - self.failed_s > _WATCH_S:
            return replace(self, there=there, watched=frozenset())
        found = (self.watched - frozenset(view.draining)) & view.dead
        return replace(
            self,
            there=there,
            watched=self.watched - frozenset(view.draining) - found,
            gone=self.gone | found,
            found_s=now_s if found else self.found_s,
        )

    def told(self, queue: tuple[Event, ...], now_s: float) -> tuple[Self, tuple[Event, ...]]:
        """A copy whose event has all lost nodes, and the events that wait for a ledger.

        An event that still waits is replaced. Otherwise a further one follows, once no more nodes are found.
        """
        if len(self.gone) == self.num_told:
            return self, queue
        is_queued = self.event in queue
        num_written = self.num_written if is_queued else self.num_told
        if num_written and not is_queued and now_s - self.found_s < _SETTLE_S:
            return self, queue
        event = NodesLost(nodes=len(self.gone), told=num_written, from_memory=self.from_memory)
        queue = _with_last_replaced(queue, self.event, event) if is_queued else (*queue, event)
        return replace(self, event=event, num_told=len(self.gone), num_written=num_written), queue


def _with_last_replaced(queue: tuple[Event, ...], old: Event | None, new: Event) -> tuple[Event, ...]:
    """The queue with `new` for the last `old` in it. An equal event before that one is about another failure."""
    place = len(queue) - 1 - queue[::-1].index(old)
    return (*queue[:place], new, *queue[place + 1 :])
