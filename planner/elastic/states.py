"""The states of the elastic controller, as a sum type. Each state has only the fields that it needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from planner.elastic.group import Group, ReasonKey
from planner.elastic.history import History
from planner.elastic.memory import MemoryState
from planner.elastic.pause import NotAResize, Pause
from planner.elastic.view import View
from planner.events.event import Event
from planner.plan import BatchSizes, WorkerRange
from planner.plan.lowered_caps import lowered_sizes
from planner.plan.revise import useful_workers


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the job and the launch fix. It never changes."""

    sizes: BatchSizes
    workers: WorkerRange
    has_eval: bool
    floor: int = 0
    """workers that need a place on an on-demand node (`planner.elastic.floor`). 0: any node will do"""
    eager: bool = False
    """use every new node, even if the resize does not pay: rehearsals need this"""
    on_one_machine: bool = False
    """the nodes share one machine's cores, so a step time measured at one size does not predict another size. The
    plan's cost is used instead"""

    def useful(self, usable: int) -> int:
        """The smallest worker count that is as fast as `usable` workers."""
        return usable if self.eager else useful_workers(self.sizes, self.workers, usable)

    @cached_property
    def worth_asking(self) -> tuple[int, ...]:
        """Worker counts to ask an autoscaler for, ascending: each is faster than all smaller ones."""
        counts = [self.useful(self.workers.most)]
        while counts[-1] > self.workers.least:
            counts.append(self.useful(counts[-1] - 1))
        return tuple(reversed(counts))


@dataclass(frozen=True, kw_only=True)
class ControllerContext:
    """What the controller knows in every state."""

    rules: Rules
    history: History
    memory: MemoryState
    has_begun: bool = False
    """whether a group of the launch was started"""
    events: tuple[Event, ...] = ()
    """events not yet in a ledger, oldest first. A group that runs writes them"""
    told_once: tuple[type[Event], int] | None = None
    """kind and room of the last event that is not repeated until the room changes"""
    told: Mapping[ReasonKey, int] = field(default_factory=dict)
    """reasons for unused places -> how many were unused when that was told last"""
    waiting_since_s: float | None = None
    """since when there is room for fewer workers than `workers.min`, so that no group can start"""
    waited_s: float = 0.0
    """seconds of such waits that no ledger has yet"""
    held_only_step: int = 0
    """the step that the last hand-over left in memory alone. 0 if it, or a later one, is durable, or if it was lost"""
    maybe_held_step: int = 0
    """the last step of a group that failed: copies of it, or of one not long before, may be in memory alone. 0 if a
    group has trained since, or if there were no copies"""

    @property
    def unsaved_step(self) -> int:
        """The newest step that may be in memory alone. A run that ends commits it first, if a group can start."""
        return max(self.held_only_step, self.maybe_held_step)

    def sizes_at(self, world_size: int) -> BatchSizes:
        """The batch sizes to predict steps with: those of the last group of this size.

        Before it has reported a step, they are the job's with all caps that were lowered. A group without a device of
        such a kind has larger micro-batches, and fewer rounds. So limits on silence follow from the job's sizes: they
        are the longer ones.
        """
        if world_size in self.history.caps:
            return self.history.sizes_at(world_size)
        return lowered_sizes(self.rules.sizes, self.memory.caps.lowered)

    def telling(self, *events: Event) -> Self:
        """A copy with more events for the ledger."""
        return replace(self, events=(*self.events, *events))

    def waiting(self, now_s: float) -> Self:
        """A copy in which no group can start, because there is too little room."""
        return self if self.waiting_since_s is not None else replace(self, waiting_since_s=now_s)

    def after_wait(self, now_s: float) -> Self:
        """A copy in which there is room again. It adds up the seconds of the wait."""
        if self.waiting_since_s is None:
            return self
        return replace(self, waiting_since_s=None, waited_s=self.waited_s + now_s - self.waiting_since_s)

    def with_room(self, view: View, now_s: float, least: int = 0) -> Self:
        """A copy that says how many workers there is room for now, at least `least`. A hold takes no room away."""
        before = self.history
        history = before.with_room(self.usable(view.room, now_s), least, now_s)
        told_once = self.told_once if history.capacity is before.capacity else None
        return self if history is before else replace(self, history=history, told_once=told_once)

    def room(self, view: View, now_s: float) -> int:
        """How many workers there is room for, without nodes on hold and bad nodes."""
        return self.history.held(sum(self.usable(view.room, now_s).values()), now_s)

    def usable(self, room: Mapping[str, int], now_s: float) -> Mapping[str, int]:
        """Room without the bad nodes, if that is enough for `workers.min`."""
        bad = room.keys() & self.history.bad_nodes(now_s)
        if not bad:
            return room
        good = {node: count for node, count in room.items() if node not in bad}
        return good if sum(good.values()) >= self.rules.workers.least else room


@dataclass(frozen=True, kw_only=True)
class Idle:
    """No group runs. The controller starts one as soon as there is room."""

    known: ControllerContext
    pause: Pause = field(default_factory=NotAResize)
    """the pause that the next group ends"""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A group trains."""

    known: ControllerContext
    group: Group


@dataclass(frozen=True, kw_only=True)
class Warming:
    """A group trains, and newcomers start beside it."""

    known: ControllerContext
    group: Group
    since_s: float
    world_size: int
    """of the next group"""
    ready_s: float = math.inf
    """since when the newcomers are ready. Infinite: they still start"""


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """A group was told to finish its step, commit it or copy it into memory, and park."""

    known: ControllerContext
    group: Group
    since_s: float
    most: int
    """largest world size of the next group: a worker that was not warmed up would keep all others waiting"""
    gives_up_s: float = math.inf
    """when a growth no longer waits for the group's first step. Infinite: always, or no newcomers are ready"""
    in_memory: bool = False
    """whether the last step may stay in memory"""
    cut: bool = False
    """whether the workers were told to give up the step in flight"""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """All workers have parked, and there is room for fewer than `workers.min`.

    Their last step is durable or in memory.
    """

    known: ControllerContext
    group: Group
    most: int
    """largest world size of the next group"""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Everything that could be saved is committed. The driver may end the run, and no group starts any more."""

    known: ControllerContext


State = Idle | Running | Warming | Stopping | Waiting | Ending
WithGroup = Running | Warming | Stopping | Waiting
