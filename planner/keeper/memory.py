"""A keeper's memory: buffers without a name in any file system (memfd), within a bound, and which of them count.

A place has a buffer, and a copy's description once it is sealed. Workers of the same user on the same machine write
into a buffer through `/proc/<pid>/fd/<n>`, without the keeper. So a place changes its version whenever it is opened for
writing, and whoever has read from it compares versions afterwards.
"""

import fcntl
import mmap
import os
import secrets
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from planner.base.text import counted
from planner.keeper.copies import Copy, CopyKey
from planner.keeper.errors import KeeperError, KeeperFull

NAME_PREFIX = "planner-"
"""of a buffer's name, which tells it from other open files"""

# Linux, include/uapi/linux/fcntl.h. A buffer that a worker could shorten would end the keeper by SIGBUS.
_ADD_SEALS, _NO_MORE_SEALS, _NO_SHRINK, _NO_GROW = 1033, 1, 2, 4
# As `planner.train.host_room` counts. The rest is for what nobody counted.
_MOST_OF_AVAILABLE = 0.8


class Table(Enum):
    """A key may be in both: as its worker's own copy, and as a replica that another node sent."""

    OWN = "own"
    REPLICAS = "replicas"


class Buffer:
    """Memory of a fixed size that other processes can open. It is freed when its last user drops it."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.name = NAME_PREFIX + secrets.token_hex(16)
        fd = os.memfd_create(self.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # `mmap` cannot map 0 bytes, and the last workers' shards may be empty.
            os.ftruncate(fd, max(num_bytes, 1))
            fcntl.fcntl(fd, _ADD_SEALS, _NO_MORE_SEALS | _NO_SHRINK | _NO_GROW)
            self.view = memoryview(mmap.mmap(fd, max(num_bytes, 1)))[:num_bytes]
        except (OSError, ValueError, OverflowError):
            os.close(fd)
            raise
        self.fd = fd

    def __del__(self) -> None:
        # The constructor may have failed before there was a descriptor.
        if hasattr(self, "fd"):
            os.close(self.fd)


@dataclass(kw_only=True)
class _Place:
    buffer: Buffer
    version: int
    copy: Copy | None = None
    """None: it is not sealed"""
    is_receiving: bool = False
    """whether a thread of the keeper writes into the buffer"""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A place as it was at one moment. Its buffer stays as long as this is kept, whatever becomes of the place."""

    table: Table
    key: CopyKey
    version: int
    buffer: Buffer
    copy: Copy | None

    @property
    def sealed(self) -> Copy:
        """The description of what it holds.

        Raises:
            KeeperError: it is not sealed.
        """
        if self.copy is None:
            raise KeeperError(f"{shown(self.key)} is not sealed.")
        return self.copy


class Memory:
    """The places of one keeper. Methods may be called from any thread, and none of them takes long."""

    def __init__(self, bound_bytes: int, available: Callable[[], int] = lambda: sys.maxsize) -> None:
        """Begin without places.

        Args:
            bound_bytes: of all places together.
            available: bytes that the host has left now. A fifth of them stays free.
        """
        self._bound_bytes, self._available = bound_bytes, available
        self._places: dict[tuple[Table, CopyKey], _Place] = {}
        self._lock = threading.Lock()
        self._version = 0

    def open(self, table: Table, key: CopyKey, num_bytes: int, *, is_receiving: bool = False) -> Opened:
        """Give a place for writing, and unseal what it held. The buffer is kept if its size stays.

        Raises:
            KeeperFull: it does not fit into the bound. What the place held stays.
            KeeperError: the system has no memory for it.
        """
        with self._lock:
            old = self._places.get((table, key))
            # A thread may still write into the old buffer. Then the place gets another one.
            if old is None or old.buffer.num_bytes != num_bytes or old.is_receiving:
                self._require_room(old.buffer.num_bytes if old else 0, key, num_bytes)
                # Dropped before the new one is made, so that both do not take memory at the same time.
                self._places.pop((table, key), None)
                old = None
            buffer = old.buffer if old else _made(num_bytes)
            self._version += 1
            place = _Place(buffer=buffer, version=self._version, is_receiving=is_receiving)
            self._places[table, key] = place
            return _opened(table, key, place)

    def opened(self, table: Table, key: CopyKey) -> Opened:
        """The place as it is now.

        Raises:
            KeeperError: there is none.
        """
        with self._lock:
            if (place := self._places.get((table, key))) is None:
                raise KeeperError(f"The keeper has no place for {shown(key)}. Ask for room first.")
            return _opened(table, key, place)

    def sealed(self, key: CopyKey, step: int | None = None) -> Opened:
        """The sealed copy of a key: its worker's own, otherwise a replica.

        A place is used again for another step. Whoever has seen its description names the step that it means.

        Raises:
            KeeperError: neither is there and sealed, or not of that step.
        """
        with self._lock:
            for table in Table:
                place = self._places.get((table, key))
                if place is not None and place.copy is not None and step in {None, place.copy.step}:
                    return _opened(table, key, place)
            found = [(table, self._places[table, key].copy) for table in Table if (table, key) in self._places]
        states = [f"{table.value}: {'not sealed' if copy is None else f'of step {copy.step}'}" for table, copy in found]
        raise KeeperError(f"The keeper has no sealed copy of {shown(key)} ({', '.join(states) or 'no place for it'}).")

    def seal(self, opened: Opened, copy: Copy) -> None:
        """Make a place count.

        Raises:
            KeeperError: it was opened again, or freed, since `opened`.
        """
        with self._lock:
            self._current(opened).copy = copy

    def require_unchanged(self, opened: Opened) -> None:
        """Do nothing if nobody has opened the place for writing since `opened`.

        Raises:
            KeeperError: it was opened again, or freed.
        """
        with self._lock:
            self._current(opened)

    def require_version(self, key: CopyKey, version: int) -> None:
        """Do nothing if nobody has opened the place of this version for writing since.

        Raises:
            KeeperError: it was opened again, or freed.
        """
        with self._lock:
            if version not in {place.version for table in Table if (place := self._places.get((table, key)))}:
                raise KeeperError(_again(key))

    def end_receiving(self, opened: Opened) -> None:
        """Say that the thread that received into a place has ended."""
        with self._lock:
            place = self._places.get((opened.table, opened.key))
            if place is not None and place.version == opened.version:
                place.is_receiving = False

    def copies(self) -> list[Copy]:
        """All that are sealed: workers' own and replicas."""
        with self._lock:
            return [place.copy for place in self._places.values() if place.copy is not None]

    def forget(self, before_generation: int) -> None:
        """Free all places of earlier generations."""
        with self._lock:
            for table, key in list(self._places):
                if key.generation < before_generation:
                    del self._places[table, key]

    def clear(self) -> None:
        """Free all places."""
        with self._lock:
            self._places.clear()

    @property
    def used_bytes(self) -> int:
        """Of all places. Buffers that a thread or a worker still uses after they were freed do not count."""
        with self._lock:
            return self._used_bytes()

    def _used_bytes(self) -> int:
        return sum(place.buffer.num_bytes for place in self._places.values())

    def _require_room(self, freed_bytes: int, key: CopyKey, num_bytes: int) -> None:
        left_bytes = self._bound_bytes - self._used_bytes() + freed_bytes
        available = self._available()
        if num_bytes > freed_bytes + _MOST_OF_AVAILABLE * available:
            raise KeeperFull(
                f"{shown(key)} needs {num_bytes} bytes. The host has {available} bytes left, and a fifth of them stays "
                "free for what else runs there."
            )
        if num_bytes > left_bytes:
            raise KeeperFull(
                f"{shown(key)} needs {num_bytes} bytes. The keeper has {max(left_bytes, 0)} of {self._bound_bytes} "
                f"bytes left, with {counted(len(self._places), 'place')} taken."
            )

    def _current(self, opened: Opened) -> _Place:
        place = self._places.get((opened.table, opened.key))
        if place is None or place.version != opened.version:
            raise KeeperError(_again(opened.key))
        return place


def shown(key: CopyKey) -> str:
    """A key in messages."""
    return f"generation {key.generation}, rank {key.rank}, slot {key.slot}"


def _again(key: CopyKey) -> str:
    return f"{shown(key)} was opened for writing again, or freed, in the meantime."


def _opened(table: Table, key: CopyKey, place: _Place) -> Opened:
    return Opened(table=table, key=key, version=place.version, buffer=place.buffer, copy=place.copy)


def _made(num_bytes: int) -> Buffer:
    try:
        return Buffer(num_bytes)
    except (OSError, ValueError, OverflowError) as error:
        raise KeeperError(f"The system gives the keeper no memory of {num_bytes} bytes: {error}.") from error
