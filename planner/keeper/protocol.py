"""How two peers of one launch talk over TCP, after their handshake: small JSON headers, and raw bytes.

A header is a length of 4 bytes (big-endian) and that many bytes of JSON, an object. Nothing is ever unpickled.
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import xxhash

from planner.base.json_text import NoJson, json_object
from planner.keeper.errors import BY_NAME, KeeperError, KeeperGone

SILENCE_S = 60.0
"""how long a peer may be silent within a request"""
MAX_HEADER_BYTES = 64 << 20
"""of the description of one copy. 100,000 tensors need about 25 MB"""

CHUNK_BYTES = 4 << 20
"""what is digested and then sent at once, while it is still in the processor's cache"""

_PREFIX_BYTES = 4
# A keeper that works on a request says so after as many seconds, so that its client need not wait for longer.
_WORKING_S = 5.0

Header = dict[str, Any]


class Wire:
    """One connection to a peer of the same launch. One thread may use it at a time.

    Every method raises KeeperGone when the peer has ended, or is silent for too long.
    """

    def __init__(self, connection: socket.socket, silence_s: float = SILENCE_S) -> None:
        self._socket, self._silence_s = connection, silence_s
        self._said_at_s = time.monotonic()
        self._socket.settimeout(silence_s)

    def send(self, header: Header) -> None:
        """Send a header."""
        body = json.dumps(header).encode()
        if len(body) > MAX_HEADER_BYTES:
            raise KeeperError(f"A header of {len(body)} bytes is too long. The most is {MAX_HEADER_BYTES}.")
        self.send_bytes(memoryview(len(body).to_bytes(_PREFIX_BYTES) + body))
        self._said_at_s = time.monotonic()

    def receive(self) -> Header:
        """Receive a header."""
        num_bytes = int.from_bytes(self._exactly(_PREFIX_BYTES))
        if num_bytes > MAX_HEADER_BYTES:
            raise KeeperGone(f"The peer announced a header of {num_bytes} bytes. The most is {MAX_HEADER_BYTES}.")
        try:
            return json_object(self._exactly(num_bytes))
        except NoJson as error:
            raise KeeperGone(f"The peer sent a header that is {error}.") from error

    def wait(self) -> Header:
        """Wait for a request, however long it takes, and receive it."""
        # TCP's keepalive (`handshake`) ends this if the peer's host is gone.
        self._socket.settimeout(None)
        try:
            # It only looks: the timeout applies again before the first byte of the header is taken.
            self._socket.recv(1, socket.MSG_PEEK)
        except OSError as error:
            raise KeeperGone(f"The connection ended: {text(error)}.") from error
        self._socket.settimeout(self._silence_s)
        return self.receive()

    def answer(self, at_work: Callable[[], None] = lambda: None) -> Header:
        """Receive the answer to a request. `at_work` is called whenever the peer says meanwhile that it is at work.

        Raises:
            KeeperError: the peer refused. It is of the class that the answer names.
        """
        while (header := self.receive()).get("working") is True:
            at_work()
        if "error" in header:
            raise BY_NAME.get(str(header["error"]), KeeperError)(str(header.get("message", "")))
        return header

    def refuse(self, error: KeeperError) -> None:
        """Answer a request by an error."""
        kind = type(error).__name__
        self.send({"error": kind if kind in BY_NAME else KeeperError.__name__, "message": str(error)})

    def say_working(self) -> None:
        """Tell the peer that its request is being worked on, if it has heard nothing for some seconds."""
        if time.monotonic() - self._said_at_s > _WORKING_S:
            self.send({"working": True})

    def send_bytes(self, view: memoryview) -> None:
        """Send raw bytes."""
        for chunk in chunks(view):
            self._send(chunk)

    def receive_into(self, view: memoryview) -> None:
        """Fill `view` with raw bytes, without a copy in between."""
        for _ in self._received(view):
            pass

    def send_digested(self, view: memoryview) -> str:
        """Send raw bytes, and return their digest as of when they were sent."""
        digest = xxhash.xxh3_64()
        for chunk in chunks(view):
            digest.update(chunk)
            self._send(chunk)
        return digest.hexdigest()

    def receive_digested(self, view: memoryview) -> str:
        """Fill `view` with raw bytes, and return their digest."""
        digest = xxhash.xxh3_64()
        for chunk in self._received(view):
            digest.update(chunk)
        return digest.hexdigest()

    def close(self) -> None:
        """End the connection. Whoever waits in another thread gets KeeperGone."""
        # Closing it would leave a thread waiting that receives from it. A shutdown wakes it.
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, view: memoryview) -> None:
        try:
            self._socket.sendall(view)
        except OSError as error:
            raise KeeperGone(f"The connection ended while {len(view)} bytes were sent: {text(error)}.") from error

    def _received(self, view: memoryview) -> Iterator[memoryview]:
        done = 0
        while done < len(view):
            try:
                count = self._socket.recv_into(view[done : done + CHUNK_BYTES])
            except OSError as error:
                raise KeeperGone(f"The connection ended after {done} of {len(view)} bytes: {text(error)}.") from error
            if not count:
                raise KeeperGone(f"The peer closed the connection after {done} of {len(view)} bytes.")
            yield view[done : done + count]
            done += count

    def _exactly(self, num_bytes: int) -> bytes:
        """So many bytes. Memory grows with what arrives, not with what the peer announced."""
        found = bytearray()
        while len(found) < num_bytes:
            part = bytearray(min(num_bytes - len(found), 1 << 20))
            self.receive_into(memoryview(part))
            found += part
        return bytes(found)


def chunks(view: memoryview) -> Iterator[memoryview]:
    """The parts of `view`, each of at most `CHUNK_BYTES`."""
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def text(error: OSError) -> str:
    """Why a connection ended, as text."""
    return "a timeout passed" if isinstance(error, TimeoutError) else error.strerror or type(error).__name__
