"""What a keeper does for each request. Each function gets a connection whose peer has the launch's secret.

A function that raises KeeperError has read all that belongs to its request, so the connection can be used again.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from planner.base.text import counted
from planner.keeper.copies import Copy, damaged, with_digests
from planner.keeper.descriptions import address_of, copy_of, is_count, key_of
from planner.keeper.errors import KeeperDamaged, KeeperError, KeeperGone
from planner.keeper.links import Links
from planner.keeper.memory import Memory, Opened, Table, shown
from planner.keeper.protocol import Header, Wire, chunks


@dataclass(frozen=True, kw_only=True)
class Desk:
    """What requests work with."""

    memory: Memory
    links: Links


def room(desk: Desk, wire: Wire, request: Header) -> None:
    """A place for a worker's own copy, for writing."""
    num_bytes = _count(request.get("num_bytes"))
    wire.send(_where(desk.memory.open(Table.OWN, key_of(request.get("key")), num_bytes)))


def map_(desk: Desk, wire: Wire, request: Header) -> None:
    """Where the memory of a sealed copy is, and its place's version."""
    opened = _sealed(desk, request)
    wire.send({**_where(opened), "version": opened.version})


def unchanged(desk: Desk, wire: Wire, request: Header) -> None:
    """Whether a place still has the version that `map` has named: its memory was the copy's until now."""
    desk.memory.require_version(key_of(request.get("key")), _count(request.get("version")))
    wire.send({})


def seal(desk: Desk, wire: Wire, request: Header) -> None:
    """Take the digests of a worker's own copy. From then on it counts."""
    copy = copy_of(request.get("copy"))
    opened = desk.memory.opened(Table.OWN, copy.key)
    _require_fit(copy, opened)
    # Outside the lock, which other requests need: `seal` refuses if the place was opened meanwhile.
    copy = with_digests(copy, opened.buffer.view, wire.say_working)
    desk.memory.seal(opened, copy)
    wire.send({"digests": [piece.digest for piece in copy.pieces]})


def check(desk: Desk, wire: Wire, request: Header) -> None:
    """Take the digests of a sealed copy again."""
    opened = _sealed(desk, request)
    names = damaged(opened.sealed, opened.buffer.view, wire.say_working)
    desk.memory.require_unchanged(opened)
    _require_whole(opened.sealed, names)
    wire.send({})


def copies(desk: Desk, wire: Wire, _: Header) -> None:
    """The descriptions of all sealed copies, one header each."""
    found = desk.memory.copies()
    wire.send({"count": len(found)})
    for copy in found:
        wire.send({"copy": copy.as_json()})


def forget(desk: Desk, wire: Wire, request: Header) -> None:
    """Free all copies of earlier generations."""
    desk.memory.forget(_count(request.get("before_generation")))
    wire.send({})


def read(desk: Desk, wire: Wire, request: Header) -> None:
    """Ranges of a sealed copy's memory: a header, the bytes of all, and a header with the digests of what was sent."""
    opened = _sealed(desk, request)
    most = opened.buffer.num_bytes
    ranges = [_range(part, most) for part in _list(request.get("parts"))]
    wire.send({})
    digests = [wire.send_digested(opened.buffer.view[start:stop]) for start, stop in ranges]
    # After the bytes are sent: what arrived counts only if nobody has opened the place for writing meanwhile.
    desk.memory.require_unchanged(opened)
    wire.send({"digests": digests})


def replicate(desk: Desk, wire: Wire, request: Header) -> None:
    """Send a sealed copy to another keeper, and wait until that one has taken all digests."""
    opened = desk.memory.sealed(key_of(request.get("key")))
    address = address_of(request.get("to"))

    def say_working() -> None:
        with contextlib.suppress(KeeperGone):  # the client has ended. The replica is of use without it
            wire.say_working()

    def exchange(other: Wire) -> None:
        other.send({"do": "receive", "copy": opened.sealed.as_json()})
        other.answer(say_working)
        for chunk in chunks(opened.buffer.view[: opened.sealed.num_bytes]):
            other.send_bytes(chunk)
            say_working()
        other.answer(say_working)

    try:
        desk.links.use(address, exchange)
    except KeeperDamaged:
        desk.memory.require_unchanged(opened)  # opened for writing while it was sent: that is no damage
        raise
    wire.send({})


def receive(desk: Desk, wire: Wire, request: Header) -> None:
    """A replica from another keeper: an answer when there is room, then all bytes, then an answer when it is sealed."""
    copy = copy_of(request.get("copy"))
    opened = desk.memory.open(Table.REPLICAS, copy.key, copy.num_bytes, is_receiving=True)
    try:
        wire.send({})
        wire.receive_into(opened.buffer.view)
    finally:
        desk.memory.end_receiving(opened)
    # The sender's digests, taken before it sent: they also find what changed on the way.
    names = damaged(copy, opened.buffer.view, wire.say_working)
    desk.memory.require_unchanged(opened)
    _require_whole(copy, names)
    desk.memory.seal(opened, copy)
    wire.send({})


def unknown(desk: Desk, wire: Wire, request: Header) -> None:  # noqa: ARG001  # as the others
    """Refuse a request that another version of planner may know."""
    raise KeeperError(f"A keeper does not know the request {request.get('do')!r}.")


REQUESTS: dict[str, Callable[[Desk, Wire, Header], None]] = {
    "room": room,
    "map": map_,
    "unchanged": unchanged,
    "seal": seal,
    "check": check,
    "copies": copies,
    "forget": forget,
    "read": read,
    "replicate": replicate,
    "receive": receive,
}


def _sealed(desk: Desk, request: Header) -> Opened:
    """The sealed copy that a request means: of a key, and of a step if it names one."""
    step = request.get("step")
    return desk.memory.sealed(key_of(request.get("key")), None if step is None else _count(step))


def _where(opened: Opened) -> Header:
    """Where another process of this machine finds a place's memory."""
    buffer = opened.buffer
    return {"pid": os.getpid(), "fd": buffer.fd, "name": buffer.name, "num_bytes": buffer.num_bytes}


def _require_fit(copy: Copy, opened: Opened) -> None:
    if copy.num_bytes > opened.buffer.num_bytes:
        raise KeeperError(
            f"{shown(copy.key)} describes {copy.num_bytes} bytes. Its place has {opened.buffer.num_bytes} bytes. "
            "Ask for more room first."
        )


def _require_whole(copy: Copy, damaged_names: list[str]) -> None:
    if damaged_names:
        raise KeeperDamaged(
            f"{shown(copy.key)}, step {copy.step}: the memory of {counted(len(damaged_names), 'piece')} of "
            f"{len(copy.pieces)} differs from its digest, the first is {damaged_names[0]!r}. Use another copy."
        )


def _count(value: Any) -> int:
    if not is_count(value):
        raise KeeperError(f"{value!r} is no count.")
    return int(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise KeeperError(f"{value!r} is no list.")
    return value


def _range(part: Any, most: int) -> tuple[int, int]:
    """The bytes `[start, stop)` of a part `[offset, number of bytes]`."""
    if not (isinstance(part, list) and len(part) == 2 and all(map(is_count, part)) and sum(part) <= most):
        raise KeeperError(f"{part!r} is no range within the {most} bytes of this copy.")
    return part[0], part[0] + part[1]
