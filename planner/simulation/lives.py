"""From a trace to nodes with lives: when each comes, goes and has notice. Equal seeds give equal lives."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Literal

from planner.simulation.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Notice:
    """How losses are announced."""

    seconds: float = 0.0
    """from the notice to the loss"""
    share: float = 0.0
    """of all losses that have a notice, from 0 to 1"""


NO_NOTICE = Notice()


@dataclass(frozen=True, kw_only=True)
class Life:
    """One node's life, in seconds of the trace. Infinite: it does not happen before the trace ends."""

    node: str
    arrives_s: float
    leaves_s: float = math.inf
    told_s: float = math.inf
    """when it gets notice"""

    @property
    def has_notice(self) -> bool:
        """Whether its loss is announced."""
        return self.told_s < math.inf


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A node comes, goes or gets notice."""

    time_s: float
    kind: Literal["leaves", "arrives", "told"]
    life: Life


_ORDER = {"leaves": 0, "arrives": 1, "told": 2}


@dataclass(frozen=True, kw_only=True)
class Lives:
    """All nodes of a trace."""

    lives: tuple[Life, ...]
    end_s: float

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """Everything that happens, by rising time. At one time losses come first."""
        found = [Moment(time_s=life.arrives_s, kind="arrives", life=life) for life in self.lives]
        found += [Moment(time_s=life.told_s, kind="told", life=life) for life in self.lives if life.has_notice]
        found += [
            Moment(time_s=life.leaves_s, kind="leaves", life=life) for life in self.lives if life.leaves_s < math.inf
        ]
        return tuple(sorted(found, key=lambda moment: (moment.time_s, _ORDER[moment.kind])))

    @cached_property
    def counts(self) -> tuple[tuple[float, int], ...]:
        """When the number of nodes changes, and the nodes from then on."""
        counts, number = [], 0
        changes = (moment for moment in self.moments if moment.kind != "told")
        for time_s, group in groupby(changes, key=lambda moment: moment.time_s):
            number += sum(1 if moment.kind == "arrives" else -1 for moment in group)
            counts.append((time_s, number))
        return tuple(counts)

    @property
    def peak(self) -> int:
        """The most nodes at any time."""
        return max((number for _, number in self.counts), default=0)

    @property
    def spans(self) -> Iterator[tuple[float, float, int]]:
        """Start, end and nodes of each stretch without a change, from the first node on."""
        points = [*self.counts, (self.end_s, 0)]
        for (start_s, number), (end_s, _) in pairwise(points):
            yield start_s, end_s, number

    @property
    def usual(self) -> int:
        """The median number of nodes over time: as many are there for at least half of it."""
        left_s = self.end_s / 2
        for start_s, end_s, number in sorted(self.spans, key=lambda span: -span[2]):
            left_s -= end_s - start_s
            if left_s <= 0:
                return number
        return 0


def lives_of(trace: Trace, notice: Notice = NO_NOTICE, seed: int = 1) -> Lives:
    """The nodes of a trace. Where only their number is known, each victim is drawn among those that are there.

    Args:
        trace: what is known.
        notice: how losses are announced. Which ones is drawn.
        seed: of all draws.
    """
    dice = random.Random(seed)
    lives = _named(trace) if trace.events else _drawn(trace, dice)
    kept = [life for life in lives if life.arrives_s < trace.end_s and life.leaves_s > life.arrives_s]
    return Lives(lives=tuple(_ended(life, trace.end_s, notice, dice) for life in kept), end_s=trace.end_s)


def _ended(life: Life, end_s: float, notice: Notice, dice: random.Random) -> Life:
    """The life until the trace ends, with its notice."""
    if life.leaves_s >= end_s:
        return replace(life, leaves_s=math.inf)
    if life.has_notice:
        return life
    if dice.random() < notice.share:
        return replace(life, told_s=max(life.arrives_s, life.leaves_s - notice.seconds))
    return life


def _named(trace: Trace) -> list[Life]:
    """Lives by the events of nodes. Adding a node that is there changes nothing, and so does removing another one.

    A notice counts until its node goes.
    """
    lives: list[Life] = []
    alive: dict[str, int] = {}
    for event in trace.events:
        if event.event == "add" and event.node not in alive:
            alive[event.node] = len(lives)
            lives.append(Life(node=f"{event.node}@{event.time_s:.12g}", arrives_s=event.time_s))
        elif event.event == "notice" and event.node in alive:
            at = alive[event.node]
            lives[at] = replace(lives[at], told_s=min(lives[at].told_s, event.time_s))
        elif event.event == "remove" and event.node in alive:
            at = alive.pop(event.node)
            lives[at] = replace(lives[at], leaves_s=event.time_s)
    return lives


def _drawn(trace: Trace, dice: random.Random) -> list[Life]:
    """Lives by the number of nodes."""
    lives: list[Life] = []
    alive: dict[str, int] = {}
    for row in trace.rows:
        while len(alive) > row.nodes:
            at = alive.pop(dice.choice(sorted(alive)))
            lives[at] = replace(lives[at], leaves_s=row.time_s)
        while len(alive) < row.nodes:
            alive[f"n{len(lives)}"] = len(lives)
            lives.append(Life(node=f"n{len(lives)}", arrives_s=row.time_s))
    return lives
