"""What a probe measured, and how many bytes the next repeat moves. Pure."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

MB = 10**6
GB = 10**9
# A repeat may take a bit less than the wanted time. Otherwise the last growth would take as long as a repeat.
_LONG_ENOUGH = 0.5
# A first small transfer says little about a large one, so the size grows in steps.
_MOST_GROWTH = 8.0
# Below this share of the others' median, a node is named.
_SLOW = 0.5
# Up to this gain over one node, more nodes do not write faster. From that share of a perfect gain on, they do.
_NO_GAIN, _FULL_GAIN = 1.25, 0.75
# Highest repeat / lowest repeat.
_UNSTEADY = 2.0


@dataclass(frozen=True, kw_only=True)
class Move:
    """One transfer: a file that was written or read, or bytes that were sent or copied."""

    num_bytes: int
    seconds: float

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes per second."""
        # A clock may not move during a small transfer.
        return self.num_bytes / GB / max(self.seconds, 1e-9)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How large and how many the repeats of a measurement are."""

    most_bytes: int
    target_s: float = 0.6
    """how long one repeat should take. Storage and networks need some time to reach their rate"""
    limit_s: float = 10.0
    """no repeat begins after this time, except the first. A single file ends after it, too"""
    repeats: int = 5
    first_bytes: int = MB


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A measured quantity, with one value per repeat."""

    what: str
    """such as `write`"""
    where: str
    """names of nodes as text, such as `host-a alone`"""
    unit: str
    """`GB/s` (10^9 bytes per second) or `ms`"""
    values: tuple[float, ...]
    num_bytes: int
    """that one node moved in one repeat"""
    how: str = ""

    @property
    def median(self) -> float:
        """Over the repeats."""
        return statistics.median(self.values)


@dataclass(frozen=True, kw_only=True)
class Probed:
    """Everything that one probe found."""

    path: str
    nodes: tuple[str, ...]
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]

    @property
    def alone(self) -> Figure:
        """The write rate of one node."""
        return next(figure for figure in self.figures if figure.what == "write")

    @property
    def together(self) -> Figure:
        """The write rate of all nodes together: what a commit sees. That of the only node if there is one."""
        return next((figure for figure in self.figures if figure.what == "write, all at once"), self.alone)


def next_bytes(num_bytes: int, seconds: float, pace: Pace) -> int:
    """The size of the next transfer, or the same size if this one took long enough or is the largest.

    It is the size that would take `pace.target_s` at this rate, but at most eight times the last one.
    """
    if seconds >= _LONG_ENOUGH * pace.target_s or num_bytes >= pace.most_bytes:
        return num_bytes
    growth = min(pace.target_s / max(seconds, 1e-9), _MOST_GROWTH)
    return min(int(num_bytes * growth), pace.most_bytes)


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """A measurement: each entry has one transfer per node."""

    first: Sequence[Move]
    """of the final size. It does not count: new blocks of a virtual disk can take several times as long"""
    moves: Sequence[Sequence[Move]]
    """those that count, at least one"""


def repeated(move: Callable[[int], Sequence[Move]], pace: Pace) -> Repeats:
    """Find a size that takes long enough, then repeat it.

    Args:
        move: moves that many bytes on each of the nodes at once. Returns a transfer for each of them.
        pace: how large and how many.

    If even the first transfer takes longer than the time limit, it is the only one, and counts.
    """
    size = min(pace.first_bytes, pace.most_bytes)
    moves = move(size)
    spent_s = slowest_s(moves)
    while (larger := next_bytes(size, slowest_s(moves), pace)) > size:
        size, moves = larger, move(larger)
        spent_s += slowest_s(moves)
    kept: list[Sequence[Move]] = []
    while len(kept) < pace.repeats and spent_s < pace.limit_s:
        kept.append(move(size))
        spent_s += slowest_s(kept[-1])
    return Repeats(first=moves, moves=kept or [moves])


def slowest_s(moves: Sequence[Move]) -> float:
    """How long all of them took that began at once, in seconds."""
    return max(move.seconds for move in moves)


def together_gb_per_s(moves: Sequence[Move]) -> float:
    """All bytes / the seconds of the slowest, in GB/s: a commit is done when its last file is."""
    return sum(move.num_bytes for move in moves) / GB / max(slowest_s(moves), 1e-9)


def slow_ones(names: Sequence[str], repeats: Sequence[Sequence[Move]]) -> Mapping[str, float]:
    """Name -> median rate in GB/s of those with less than half of the median over all names."""
    rates = [statistics.median(moves[place].gb_per_s for moves in repeats) for place in range(len(names))]
    usual = statistics.median(rates)
    return {name: rate for name, rate in zip(names, rates, strict=True) if rate < _SLOW * usual}


def gain_text(alone: float, together: float, num_nodes: int) -> str:
    """What it means for larger clusters that nodes together write so much more than one does. Rates in GB/s."""
    gain = together / max(alone, 1e-12)
    if gain <= _NO_GAIN:
        return "One node alone writes about as much, so more nodes would not write more: the storage is the limit."
    if gain >= _FULL_GAIN * num_nodes:
        return "The rate grows with the nodes, so more nodes may write more. Probe with as many as will train."
    return f"{num_nodes} nodes write {gain:.1f} times as much as one. Probe with as many as will train."


def slow_start_text(first: float, usual: float) -> str:
    """A warning if the first file was written at less than half of the usual rate. Rates in GB/s. Otherwise empty."""
    if first >= _SLOW * usual:
        return ""
    return (
        f"The first file of that size was written at {first:.2g} GB/s and does not count. New blocks of a virtual disk "
        "can be slow, so the first commits of a run may be, too."
    )


def unsteady_text(figure: Figure) -> str:
    """A warning if the repeats differ by more than a factor of two. Otherwise empty."""
    least, most = min(figure.values), max(figure.values)
    if most <= _UNSTEADY * least:
        return ""
    return (
        f"The highest repeat of `{figure.what}` is {most / max(least, 1e-12):.1f} times the lowest. Something else "
        "uses the storage, or its speed changes after a burst: probe again, or plan with the lowest."
    )
