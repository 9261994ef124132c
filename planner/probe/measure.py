"""Measures one thing after another on the nodes of a probe."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from planner.base.disk import size_text
from planner.base.text import counted
from planner.errors import DiskFull
from planner.probe.devices import Copies
from planner.probe.figures import (
    GB,
    Figure,
    Move,
    Pace,
    Probed,
    Repeats,
    repeated,
    slow_ones,
    slow_start_text,
    slowest_s,
    together_gb_per_s,
)
from planner.probe.network import CONNECTIONS
from planner.probe.node import NodeProbe, Nodes
from planner.probe.storage import SMALL_BYTES

_MOST_BYTES = GB
# With a size that the user named, a repeat may take longer.
_SIZED_TARGET_S, _SIZED_LIMIT_S = 10.0, 60.0
# Without one, the files of all nodes take at most this share of the free space.
_FREE_SHARE = 0.25
_SMALL_REPEATS, _SMALL_LIMIT_S = 20, 1.0
_NETWORK_MOST_BYTES = 4 * GB


@dataclass(kw_only=True)
class _Found:
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def measure(nodes: Nodes, path: str, *, size_bytes: int, say: Callable[[str], None]) -> Probed:
    """Measure storage, network and GPU copies. The caller cleans up.

    Args:
        nodes: where.
        path: the storage, as the nodes know it.
        size_bytes: of each file and of each transfer over the network. 0 takes sizes that take about half a second.
        say: called with what is measured now.

    Raises:
        PlannerError: a node cannot use the storage, or cannot be reached.
    """
    found = _Found()
    say("looking at the storage")
    pace = _storage_pace(nodes, path, size_bytes)
    if len(nodes.names) > 1:
        found.notes += _not_shared(nodes, path)
    _storage_alone(nodes, path, pace, found, say)
    if len(nodes.names) > 1:
        _storage_together(nodes, pace, found, say)
    _network(nodes, size_bytes, found, say)
    say("GPU copies")
    _devices(nodes.names, nodes.copies(), found)
    return Probed(path=path, nodes=nodes.names, figures=tuple(found.figures), notes=tuple(found.notes))


def _storage_pace(nodes: Nodes, path: str, size_bytes: int) -> Pace:
    """Make the folder on each node, and decide how large a file may be."""
    everywhere = dict.fromkeys(range(len(nodes.names)), ())
    frees = [free for free in nodes.ask(NodeProbe.open, everywhere) if free >= 0]
    room = min(frees) // len(nodes.names) if frees else max(_MOST_BYTES, size_bytes) * 4
    if not size_bytes:
        return Pace(most_bytes=max(min(_MOST_BYTES, int(room * _FREE_SHARE)), 1))
    if size_bytes > room:
        files = counted(len(nodes.names), "file")
        raise DiskFull(
            f"{path}: {files} of {size_text(size_bytes)} do not fit, because {size_text(min(frees))} are free. "
            "Write a smaller --size"
        )
    return Pace(most_bytes=size_bytes, target_s=_SIZED_TARGET_S, limit_s=_SIZED_LIMIT_S)


def _not_shared(nodes: Nodes, path: str) -> list[str]:
    """Which nodes do not see the files of the first."""
    others = range(1, len(nodes.names))
    answers = nodes.ask(NodeProbe.sees, dict.fromkeys(others, ("0",)))
    blind = [nodes.names[place] for place, sees in zip(others, answers, strict=True) if not sees]
    where = f"{', '.join(blind)}: {path} is another folder there than on {nodes.names[0]}"
    return [f"{where}. A run needs a folder that all nodes share."] if blind else []


def _storage_alone(nodes: Nodes, path: str, pace: Pace, found: _Found, say: Callable[[str], None]) -> None:
    where = nodes.names[0] if len(nodes.names) == 1 else f"{nodes.names[0]} alone"
    is_folder = "://" not in path
    say(f"writing, {where}")
    writes = repeated(lambda size: nodes.ask(NodeProbe.write, {0: (size, pace.limit_s)}), pace)
    found.figures.append(_rate("write", where, writes.moves, "files, flushed to the disk" if is_folder else "objects"))
    slow_start = slow_start_text(together_gb_per_s(writes.first), found.figures[-1].median)
    found.notes += [slow_start] if slow_start else []
    say(f"reading, {where}")
    reads = repeated(lambda _size: nodes.ask(NodeProbe.read, {0: (pace.limit_s,)}), _as_large_as(writes, pace))
    found.figures.append(_rate("read", where, reads.moves, "not from the page cache" if is_folder else ""))
    say(f"small files, {where}")
    ((puts, replaced),) = nodes.ask(NodeProbe.small_files, {0: (_SMALL_REPEATS, _SMALL_LIMIT_S)})
    for what, seconds in (("put if absent", puts), ("write a manifest", replaced)):
        values = tuple(each * 1000 for each in seconds)
        found.figures.append(Figure(what=what, where=where, unit="ms", values=values, num_bytes=SMALL_BYTES))


def _storage_together(nodes: Nodes, pace: Pace, found: _Found, say: Callable[[str], None]) -> None:
    places = range(len(nodes.names))
    where = f"{len(places)} nodes"
    say(f"writing, {where} at once")
    writes = repeated(lambda size: nodes.ask(NodeProbe.write, dict.fromkeys(places, (size, pace.limit_s))), pace)
    found.figures.append(_rate("write, all at once", where, writes.moves, "by each node, the sum of all"))
    say(f"reading, {where} at once")
    reads = repeated(
        lambda _size: nodes.ask(NodeProbe.read, dict.fromkeys(places, (pace.limit_s,))),
        _as_large_as(writes, pace),
    )
    found.figures.append(_rate("read, all at once", where, reads.moves, "by each node, the sum of all"))
    for name, rate in slow_ones(nodes.names, writes.moves).items():
        found.notes.append(f"{name} writes at {rate:.3g} GB/s, less than half as fast as the others at the same time.")


def _as_large_as(writes: Repeats, pace: Pace) -> Pace:
    """A pace for reading the file that was written last: its size does not change."""
    size = max(writes.moves[-1][0].num_bytes, 1)
    return Pace(most_bytes=size, first_bytes=size, limit_s=pace.limit_s)


def _network(nodes: Nodes, size_bytes: int, found: _Found, say: Callable[[str], None]) -> None:
    names, num = nodes.names, len(nodes.names)
    pace = Pace(most_bytes=size_bytes or _NETWORK_MOST_BYTES, target_s=0.4, limit_s=5.0)
    ports = nodes.ask(NodeProbe.listen, dict.fromkeys(range(num), ()))
    # Each node sends to the next one. A single node sends to itself.
    ends = [(nodes.addresses[(place + 1) % num], ports[(place + 1) % num]) for place in range(num)]
    first = f"{names[0]} -> {names[1]}" if num > 1 else f"{names[0]} -> itself"
    say(f"network, {first}")
    alone = repeated(lambda size: nodes.ask(NodeProbe.send, {0: (*ends[0], size)}), pace)
    over = f"{CONNECTIONS} TCP connections" + ("" if num > 1 else ". This is loopback, no network")
    found.figures.append(_rate("network" if num > 1 else "loopback", first, alone.moves, over))
    if num == 1:
        return
    say(f"network, {num} nodes at once")
    ring = repeated(lambda size: nodes.ask(NodeProbe.send, {place: (*ends[place], size) for place in range(num)}), pace)
    each = [[Move(num_bytes=moves[0].num_bytes, seconds=slowest_s(moves))] for moves in ring.moves]
    found.figures.append(_rate("network, all at once", f"{num} nodes", each, "each sends to the next, the slowest"))
    if len({*nodes.addresses}) == 1:
        found.notes.append("All nodes are on one machine, so the network figures are of loopback, not of a network.")
    links = [f"{name} -> {names[(place + 1) % num]}" for place, name in enumerate(names)]
    for link, rate in slow_ones(links, ring.moves).items():
        found.notes.append(f"{link}: {rate:.3g} GB/s, less than half as fast as the other links at the same time.")


def _devices(names: Sequence[str], copies: Sequence[Copies], found: _Found) -> None:
    missing: dict[str, list[str]] = {}
    for name, each in zip(names, copies, strict=True):
        if each.missing:
            missing.setdefault(each.missing, []).append(name)
        for what, moves in each.moves.items():
            found.figures.append(_rate(what, name, [[move] for move in moves], each.device))
    found.notes += [f"{', '.join(where)}: {why}, so no copies were measured." for why, where in missing.items()]


def _rate(what: str, where: str, repeats: Sequence[Sequence[Move]], how: str) -> Figure:
    values = tuple(together_gb_per_s(moves) for moves in repeats)
    return Figure(what=what, where=where, unit="GB/s", values=values, num_bytes=repeats[-1][0].num_bytes, how=how)
