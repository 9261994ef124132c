"""The keeper of a node: it serves workers of its launch, and the keepers of other nodes, over TCP."""

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

from planner.keeper.addresses import Address
from planner.keeper.errors import KeeperError, KeeperGone
from planner.keeper.handshake import greet
from planner.keeper.links import Links
from planner.keeper.memory import Memory
from planner.keeper.protocol import SILENCE_S, Wire
from planner.keeper.requests import REQUESTS, Desk, unknown

_BACKLOG = 1024
MAX_CONNECTIONS = 4096
"""of workers and other keepers at one time. Whoever comes then is hung up on"""


class Keeper:
    """Holds copies in memory, at most `bound_bytes`. It serves from construction on, in threads, until `close`.

    Only who has the secret is served.
    """

    def __init__(
        self,
        *,
        bound_bytes: int,
        secret: str,
        host: str = "127.0.0.1",
        silence_s: float = SILENCE_S,
        available: Callable[[], int] = lambda: sys.maxsize,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listen on a free port of `host`.

        Args:
            bound_bytes: of all copies.
            secret: of the launch.
            host: where it listens.
            silence_s: after which a peer is hung up on.
            available: bytes that the host has left now.
            clock: seconds, never going back.

        Raises:
            ValueError: the secret is empty.
            OSError: this machine does not have the address `host`.
        """
        if not secret:
            raise ValueError("a keeper needs a secret")
        self._secret, self._host, self._silence_s = secret, host, silence_s
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._is_closed = threading.Event()
        self._clock, self._num_at_work, self._last_s = clock, 0, clock()
        self._listener = socket.create_server((host, 0), backlog=_BACKLOG)
        self._port: int = self._listener.getsockname()[1]
        self._desk = Desk(memory=Memory(bound_bytes, available), links=Links(secret))
        threading.Thread(target=self._accept, name="keeper", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address_on(self, node: str) -> Address:
        """Where it listens, as the keeper of this node."""
        return Address(node=node, host=self._host, port=self._port)

    def serve_forever(self) -> None:
        """Wait until `close` is called. Threads serve, also without this."""
        self._is_closed.wait()

    @property
    def idle_s(self) -> float:
        """Seconds since the last request ended. 0 while one is served."""
        with self._lock:
            return 0.0 if self._num_at_work else self._clock() - self._last_s

    @property
    def used_bytes(self) -> int:
        """Of all places in its memory."""
        return self._desk.memory.used_bytes

    def close(self) -> None:
        """End all connections and free the memory. It may be called again."""
        self._is_closed.set()
        # Closing it would leave the thread waiting that accepts. A shutdown wakes it.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._desk.links.close()
        self._desk.memory.clear()

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # Too many open files, or a client that left before it was accepted. Without a pause it would spin.
                self._is_closed.wait(0.05)
                continue
            # Together under the lock: a connection that comes while the keeper closes is not forgotten.
            with self._lock:
                is_welcome = len(self._connections) < MAX_CONNECTIONS and not self._is_closed.is_set()
                if is_welcome:
                    self._connections.add(connection)
            if is_welcome:
                threading.Thread(target=self._serve, args=[connection], name="keeper-peer", daemon=True).start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            wire = greet(connection, self._secret, self._silence_s)
            while True:
                self._serve_one(wire)
        except (KeeperGone, OSError):
            pass  # the peer has ended, or is none of this launch. What it has not sealed does not count
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _serve_one(self, wire: Wire) -> None:
        """Serve one request.

        Raises:
            KeeperGone: the connection cannot be used any more.
        """
        request = wire.wait()
        with self._at_work():
            serve = REQUESTS.get(str(request.get("do")), unknown)
            try:
                serve(self._desk, wire, request)
            except KeeperGone:
                raise
            except KeeperError as error:
                wire.refuse(error)

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._lock:
            self._num_at_work += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_at_work -= 1
                self._last_s = self._clock()
