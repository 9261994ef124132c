"""What a worker uses of a keeper: its own node's, or another one's."""

import contextlib
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from planner.keeper.addresses import Address
from planner.keeper.copies import Copy, CopyKey
from planner.keeper.descriptions import copy_of
from planner.keeper.errors import KeeperDamaged, KeeperError, KeeperGone
from planner.keeper.handshake import connect
from planner.keeper.memory import NAME_PREFIX, shown
from planner.keeper.protocol import SILENCE_S, Header, Wire


class KeeperClient:
    """One connection to a keeper. One thread may use it at a time.

    Every method raises KeeperGone when the keeper does not answer: 5 s for the connection, 60 s of silence. The
    connection is closed then, and the next call makes a new one.
    """

    def __init__(self, address: Address, secret: str, *, silence_s: float = SILENCE_S) -> None:
        self.address = address
        self._secret, self._silence_s = secret, silence_s
        self._wire: Wire | None = None
        self._mapped: dict[CopyKey, tuple[str, memoryview]] = {}

    def __enter__(self) -> Self:
        self._connected()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection. Memory that `room` has returned and `mapped` has given stays readable."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        self._mapped.clear()

    def room(self, key: CopyKey, num_bytes: int) -> memoryview:
        """Shared memory for a copy, `num_bytes` bytes, writable. Only on the keeper's own machine.

        What the place held is no longer sealed. If the size stays, so does the memory, whose pages are there already:
        then copying is several times faster.

        Raises:
            KeeperFull: it does not fit into the keeper's bound. What the place held stays sealed.
            KeeperError: the keeper's memory cannot be opened from here.
        """
        with self._request({"do": "room", "key": asdict(key), "num_bytes": num_bytes}) as wire:
            where = wire.answer()
            name, view = self._mapped.pop(key, ("", memoryview(b"")))
            if name != where["name"]:
                view = self._opened(key, where, mmap.ACCESS_WRITE)
            self._mapped[key] = where["name"], view
        return view

    def seal(self, copy: Copy) -> Copy:
        """Make a copy count. The keeper takes the digests of what its place holds now. Do not write to it afterwards.

        Returns the copy with its digests.

        Raises:
            KeeperError: there is no place for it, it is too small, or it was opened for writing meanwhile.
        """
        digests = self._answer({"do": "seal", "copy": copy.as_json()})["digests"]
        pieces = [replace(piece, digest=digest) for piece, digest in zip(copy.pieces, digests, strict=True)]
        return replace(copy, pieces=tuple(pieces))

    def replicate(self, key: CopyKey, to: Address) -> None:
        """Let the keeper send a sealed copy to another keeper. Returns when that one has confirmed all digests.

        Meanwhile the replica that the other keeper had of this key is not sealed. Replicas of other slots are.

        Raises:
            OtherKeeperGone: the other keeper does not answer.
            KeeperFull: the copy does not fit into the other keeper's bound.
            KeeperDamaged: bytes differ from their digest. They changed in memory after `seal`, or on the way.
            KeeperError: there is no sealed copy of this key, or it was opened for writing meanwhile.
        """
        self._answer({"do": "replicate", "key": asdict(key), "to": asdict(to)})

    def copies(self) -> list[Copy]:
        """All sealed copies in the keeper's memory: its own workers', and replicas."""
        with self._request({"do": "copies"}) as wire:
            headers = [wire.receive() for _ in range(wire.answer()["count"])]
        return [copy_of(header.get("copy")) for header in headers]

    def check(self, key: CopyKey, step: int | None = None) -> None:
        """Let the keeper take the digests of a sealed copy again.

        Raises:
            KeeperDamaged: a piece differs. The message names the first one.
            KeeperError: there is no sealed copy of this key and step, or it was opened for writing meanwhile.
        """
        self._answer({"do": "check", "key": asdict(key), "step": step})

    @contextlib.contextmanager
    def mapped(self, key: CopyKey, step: int | None = None) -> Iterator[memoryview]:
        """Give the memory of a sealed copy, read-only. Only on the keeper's own machine.

        Raises:
            KeeperError: there is no sealed copy of this key and step, or the memory cannot be opened from here. At the
                end: it was opened for writing meanwhile, so what was read is of no use.
        """
        with self._request({"do": "map", "key": asdict(key), "step": step}) as wire:
            where = wire.answer()
            memory = self._opened(key, where, mmap.ACCESS_READ)
        yield memory
        self._answer({"do": "unchanged", "key": asdict(key), "version": where["version"]})

    def read(self, key: CopyKey, parts: Sequence[tuple[int, memoryview]], step: int | None = None) -> None:
        """Fill memory with ranges of a sealed copy. It takes its worker's own copy first, otherwise a replica.

        Args:
            key: of the copy.
            parts: for each range, its offset in the copy's memory in bytes, and the bytes to fill (contiguous).
            step: that the copy must be of. None: any.

        Raises:
            KeeperDamaged: what arrived is not what the keeper sent.
            KeeperError: there is no sealed copy of this key and step, a range leads out of it, or the copy was opened
                for writing meanwhile. The memory to fill holds anything then.
            ValueError: the memory to fill is read-only.
        """
        parts = [(offset, view.cast("B")) for offset, view in parts]
        if any(view.readonly for _, view in parts):
            raise ValueError("memory to fill is read-only")
        ranges = [[offset, len(view)] for offset, view in parts]
        with self._request({"do": "read", "key": asdict(key), "step": step, "parts": ranges}) as wire:
            wire.answer()
            received = [wire.receive_digested(view) for _, view in parts]
            sent = wire.answer()["digests"]
        if wrong := sum(one != other for one, other in zip(received, sent, strict=True)):
            raise KeeperDamaged(f"{shown(key)}: {wrong} of {len(parts)} ranges changed on the way. Read them again.")

    def forget(self, before_generation: int) -> None:
        """Let the keeper free all copies of earlier generations: workers' own and replicas."""
        self._answer({"do": "forget", "before_generation": before_generation})
        # A mapping would keep the memory that the keeper has freed.
        self._mapped = {key: mapped for key, mapped in self._mapped.items() if key.generation >= before_generation}

    def _answer(self, header: Header) -> Header:
        """The answer to a request of one header."""
        with self._request(header) as wire:
            return wire.answer()

    def _connected(self) -> Wire:
        if self._wire is None:
            self._wire = connect(self.address, self._secret, self._silence_s)
        return self._wire

    @contextlib.contextmanager
    def _request(self, header: Header) -> Iterator[Wire]:
        """Send a request. The connection is closed if its state is not known afterwards."""
        wire = self._connected()
        try:
            wire.send(header)
            yield wire
        except KeeperGone as error:
            self.close()
            address = self.address
            raise KeeperGone(
                f"The keeper of node {address.node} at {address.host}:{address.port} is gone "
                f"(request: {header['do']}): {error}"
            ) from error
        except KeeperError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            self.close()
            raise KeeperGone(f"The keeper of node {self.address.node} gave no sound answer: {error!r}.") from error
        except BaseException:
            self.close()
            raise

    def _opened(self, key: CopyKey, where: dict[str, Any], access: int) -> memoryview:
        """Shared memory of the keeper, by its open file. Its name tells it from another process's file."""
        path, num_bytes = Path(f"/proc/{int(where['pid'])}/fd/{int(where['fd'])}"), int(where["num_bytes"])
        try:
            if f"/memfd:{where['name']} " not in str(path.readlink()) or not where["name"].startswith(NAME_PREFIX):
                raise FileNotFoundError
            fd = os.open(path, os.O_RDWR if access == mmap.ACCESS_WRITE else os.O_RDONLY)
            try:
                mapped = mmap.mmap(fd, max(num_bytes, 1), access=access)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            raise KeeperError(
                f"{shown(key)}: this process cannot open {path}, the memory of the keeper of node {self.address.node} "
                f"({error!r}). Memory is shared by processes of one user in one container or on one machine."
            ) from error
        return memoryview(mapped)[:num_bytes]
