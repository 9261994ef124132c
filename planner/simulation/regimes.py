"""Traces by stated rates: calm, flapping, in ramps, with losses in groups. Equal texts and seeds give equal traces.

A text such as `nodes=16 lifetime=2h group=0.3 arrivals=10m` has these keys, each with a default:

    nodes=16         the most nodes that the market has for this job, and the nodes at the start
    lifetime=8h      mean life of a node. Lives have no memory: an old node goes as soon as a young one
    arrivals=10m     mean time between two new nodes, while there are fewer than `nodes`
    group=0          when a node goes, each other one goes with it at this chance
    ramp=6h:0.5      the most nodes falls to half and rises again, once in six hours
    flap=10m:2       two more nodes, which come and go once in ten minutes
    length=24h       of the trace
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import UserError
from planner.simulation.quantities import parse_duration, parse_share
from planner.simulation.trace import MOST_CHANGES, NodeEvent, NodesAt, Trace

_MOST_NODES = 10_000
_MOST_DIGITS = 100
_RAMP_STEPS = 40
_EXAMPLE = "Write such as 'nodes=16 lifetime=2h group=0.3 arrivals=10m'"


@dataclass(frozen=True, kw_only=True)
class Regime:
    """The rates of a market."""

    nodes: int = 16
    lifetime_s: float = 8 * 3600.0
    arrivals_s: float = 600.0
    group: float = 0.0
    ramp_s: float = 0.0
    """between two lows. 0: the market does not change"""
    ramp_low: float = 1.0
    """the part of all nodes that is there at the low"""
    flap_s: float = 0.0
    """from one coming of the flapping nodes to the next. 0: there are none"""
    flap_nodes: int = 0
    length_s: float = 24 * 3600.0

    @property
    def changes(self) -> float:
        """About how often nodes come and go, or the most nodes changes. Seldom less than the trace has."""
        losses = self.length_s / self.lifetime_s * self.nodes * (1 + self.group * (self.nodes - 1))
        ramps = self.length_s / self.ramp_s if self.ramp_s else 0.0
        flaps = self.length_s / self.flap_s * self.flap_nodes if self.flap_s else 0.0
        lives = self.nodes + min(losses + ramps * self.nodes, self.length_s / self.arrivals_s)
        return 2 * lives + _RAMP_STEPS * ramps + 2 * flaps

    def most(self, now_s: float) -> int:
        """The most nodes of the market at a time, without those that flap."""
        if not self.ramp_s:
            return self.nodes
        along = int(now_s / self.ramp_s * _RAMP_STEPS) % _RAMP_STEPS / _RAMP_STEPS
        fallen = 1 - abs(2 * along - 1)
        return max(round(self.nodes * (1 - fallen * (1 - self.ramp_low))), 0)


def parse_regime(text: str) -> Regime:
    """The regime of a text. The module says which keys it has.

    Raises:
        UserError: a key is not known, is there twice, or has a wrong value.
    """
    regime, seen = Regime(), set[str]()
    for word in text.split():
        key, _, value = word.partition("=")
        if key not in _READERS:
            raise UserError(f"--synthetic has no {key!r}, but {', '.join(_READERS)}. {_EXAMPLE}")
        if key in seen:
            raise UserError(f"--synthetic has {key} twice. Write it once")
        seen.add(key)
        regime = replace(regime, **_READERS[key](value))
    if regime.changes > MOST_CHANGES:
        raise UserError(
            f"--synthetic: nodes would come and go about {regime.changes:,.0f} times, and planner plays at most "
            f"{MOST_CHANGES:,}. Write a shorter length"
        )
    return regime


def _positive(name: str) -> Callable[[str], dict[str, float]]:
    def read(value: str) -> dict[str, float]:
        seconds = parse_duration(value, f"--synthetic: {name.removesuffix('_s')}")
        if seconds <= 0:
            raise UserError(f"--synthetic: {name.removesuffix('_s')} is {value}. Write a duration above 0, such as 2h")
        return {name: seconds}

    return read


def _number(value: str, name: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS and 1 <= int(value) <= _MOST_NODES):
        raise UserError(f"--synthetic: {name} is {value[:40]!r}. Write a whole number from 1 to {_MOST_NODES:,}")
    return int(value)


def _ramp(value: str) -> dict[str, float]:
    period, _, low = value.partition(":")
    return {
        **_positive("ramp_s")(period),
        "ramp_low": parse_share(low or "0.5", "--synthetic: ramp, behind the colon,"),
    }


def _flap(value: str) -> dict[str, float]:
    period, _, number = value.partition(":")
    return {**_positive("flap_s")(period), "flap_nodes": _number(number or "1", "flap, behind the colon,")}


_READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "nodes": lambda value: {"nodes": _number(value, "nodes")},
    "lifetime": _positive("lifetime_s"),
    "arrivals": _positive("arrivals_s"),
    "group": lambda value: {"group": parse_share(value, "--synthetic: group")},
    "ramp": _ramp,
    "flap": _flap,
    "length": _positive("length_s"),
}


def make_trace(regime: Regime, seed: int = 1) -> Trace:
    """A trace of a regime."""
    events = sorted([*_lives(regime, random.Random(seed)), *_flapping(regime)], key=lambda event: event.time_s)
    rows, number = [NodesAt(time_s=0.0, nodes=0)], 0
    for event in events:
        number += 1 if event.event == "add" else -1
        if rows[-1].time_s == event.time_s:
            rows.pop()
        rows.append(NodesAt(time_s=event.time_s, nodes=number))
    return Trace(rows=(*rows, NodesAt(time_s=regime.length_s, nodes=number)), events=tuple(events))


def _lives(regime: Regime, dice: random.Random) -> Iterator[NodeEvent]:
    """Nodes that come and go at random, and those that the market takes back."""
    named, now_s, alive = 0, 0.0, list[str]()
    while now_s < regime.length_s:
        most = regime.most(now_s)
        gone = _drawn(alive, len(alive) - most, dice)
        yield from (NodeEvent(time_s=now_s, event="remove", node=node) for node in gone)
        if now_s == 0:
            alive = [f"node{named + number}" for number in range(most)]
            named += most
            yield from (NodeEvent(time_s=0.0, event="add", node=node) for node in alive)
        change_s = _next_change(regime, now_s)
        loss_s = now_s + dice.expovariate(len(alive) / regime.lifetime_s) if alive else regime.length_s
        arrival_s = now_s + dice.expovariate(1 / regime.arrivals_s) if len(alive) < most else regime.length_s
        now_s = min(change_s, loss_s, arrival_s)
        if now_s >= regime.length_s or now_s == change_s:
            continue
        if now_s == arrival_s:
            alive.append(f"node{named}")
            named += 1
            yield NodeEvent(time_s=now_s, event="add", node=alive[-1])
            continue
        (first,) = _drawn(alive, 1, dice)
        others = [node for node in alive if dice.random() < regime.group]
        alive = [node for node in alive if node not in others]
        yield from (NodeEvent(time_s=now_s, event="remove", node=node) for node in [first, *others])


def _drawn(alive: list[str], number: int, dice: random.Random) -> list[str]:
    """Take nodes out of a list at random."""
    return [alive.pop(dice.randrange(len(alive))) for _ in range(max(number, 0))]


def _next_change(regime: Regime, now_s: float) -> float:
    """When the most nodes may change."""
    if not regime.ramp_s:
        return regime.length_s
    step_s = regime.ramp_s / _RAMP_STEPS
    return (int(now_s / step_s + 1e-9) + 1) * step_s


def _flapping(regime: Regime) -> Iterator[NodeEvent]:
    """Nodes that are there for the first half of each period."""
    if not regime.flap_s:
        return
    for period in range(int(regime.length_s / regime.flap_s) + 1):
        for number in range(regime.flap_nodes):
            name, start_s = f"flap{number}", period * regime.flap_s
            yield NodeEvent(time_s=start_s, event="add", node=name)
            yield NodeEvent(time_s=start_s + regime.flap_s / 2, event="remove", node=name)
