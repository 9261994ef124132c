"""The states of the elastic controller: a sum type. Each has the fields that it needs and no other."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from planner.elastic.group import Group
from planner.elastic.history import History
from planner.elastic.pause import Pause, UnmeasuredPause
from planner.elastic.view import View
from planner.plan import BatchSizes, WorkerRange, make_plan, worth_asking


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the job and the launch say; it never changes."""

    sizes: BatchSizes
    workers: WorkerRange
    has_eval: bool
    eager: bool = False
    """take every node that comes, worth it or not, as rehearsals want"""
    on_one_machine: bool = False
    """the nodes share its cores, so what was measured at one size says nothing of nodes of their own at another: the
    plan's cost does"""

    def useful(self, usable: int) -> int:
        """The least count that is as fast as all that may be used."""
        if self.eager:
            return usable
        return max(self.workers.least, worth_asking(make_plan(self.sizes, self.workers.most), usable))

    @cached_property
    def worth_asking(self) -> tuple[int, ...]:
        """How many workers to ask an autoscaler for, the last best, rising: no count that a smaller one equals."""
        counts = [self.useful(self.workers.most)]
        while counts[-1] > self.workers.least:
            counts.append(self.useful(counts[-1] - 1))
        return tuple(reversed(counts))


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the controller knows in every state."""

    rules: Rules
    history: History
    texts: tuple[str, ...] = ()
    """what waits to be told, oldest first: a group that runs writes it into its ledger"""
    topic: str = ""
    """what was told last of those that are not told again until the room changes"""

    def telling(self, *texts: str) -> Self:
        """A copy with something more to tell."""
        return replace(self, texts=(*self.texts, *texts))

    def with_room(self, room: int, now_s: float) -> Self:
        """A copy that says how many workers there is room for now."""
        history = self.history.with_room(room, now_s)
        return self if history is self.history else replace(self, history=history, topic="")

    def room(self, view: View, now_s: float) -> int:
        """For so many workers, as far as is known."""
        return self.history.held(sum(self._usable(view.room, now_s).values()), now_s)

    def _usable(self, room: Mapping[str, int], now_s: float) -> Mapping[str, int]:
        """Room without the nodes whose workers keep dying, as long as enough is left."""
        good = {node: count for node, count in room.items() if not self.history.is_bad(node, now_s)}
        return good if sum(good.values()) >= self.rules.workers.least else room


@dataclass(frozen=True, kw_only=True)
class Idle:
    """No group runs. One is started as soon as there is room."""

    known: Known
    pause: Pause = field(default_factory=UnmeasuredPause)
    """the one that the next group ends"""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A group trains."""

    known: Known
    group: Group


@dataclass(frozen=True, kw_only=True)
class Warming:
    """A group trains, and newcomers start beside it."""

    known: Known
    group: Group
    since_s: float
    world_size: int
    """of the group that is to come"""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """A group was told to finish its step, commit and park."""

    known: Known
    group: Group
    since_s: float
    most: int
    """workers of the next group: who was not started beforehand would keep all the others waiting"""
    is_growth: bool
    """whether newcomers are ready"""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """All workers have parked, all is committed, and there is room for fewer than `workers.min`."""

    known: Known
    group: Group
    most: int
    """as in `Stopping`"""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """All that could be saved is, and the driver may end the run. Nothing is started any more."""

    known: Known


State = Idle | Running | Warming | Stopping | Waiting | Ending
WithGroup = Running | Warming | Stopping | Waiting
