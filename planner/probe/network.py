"""Sends bytes to another node over plain TCP, and measures how long that takes until the other has them."""

import functools
import hmac
import socket
import socketserver
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from planner.errors import RunError
from planner.probe.figures import Move

CONNECTIONS = 4
"""per transfer. One TCP connection alone often does not fill a fast network, and clouds limit each"""
_PIECE_BYTES = 2**20
_TOKEN_BYTES = 32
_HEADER = struct.Struct("!Q")
_CONNECT_S = 10.0
# Longer than any transfer of a probe. A peer that is gone must not keep a thread for ever.
_SILENCE_S = 60.0


class Receiver:
    """Receives and drops bytes at a port of `address`, from those who know the token (32 bytes)."""

    def __init__(self, address: str, token: bytes) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                _receive(self.request, token)

        class Server(socketserver.ThreadingTCPServer):
            address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
            daemon_threads = True
            # A sender that hangs must not keep the probe from its end.
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                """A sender that went away is told of by the sender."""

        try:
            self._server = Server((address, 0), Handler)
        except OSError as error:
            raise RunError(f"cannot listen at {address}: {error}. Check the node's address in Ray") from error
        self.port = int(self._server.server_address[1])
        serve = functools.partial(self._server.serve_forever, poll_interval=0.05)  # closing waits for as long
        threading.Thread(target=serve, name="planner-probe", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def send(address: str, port: int, token: bytes, num_bytes: int) -> Move:
    """Send bytes over four connections at once. The time runs from the first byte until all have arrived.

    Raises:
        RunError: the other node cannot be reached there, or the connection broke.
    """
    part = max(num_bytes // CONNECTIONS, 1)
    connections: list[socket.socket] = []
    try:
        while len(connections) < CONNECTIONS:
            connections.append(socket.create_connection((address, port), timeout=_CONNECT_S))
        for connection in connections:
            connection.settimeout(_SILENCE_S)
            connection.sendall(token + _HEADER.pack(part))
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            began_s = time.perf_counter()
            # `list`: errors of a map that nobody reads are lost.
            list(threads.map(lambda connection: _send(connection, part), connections))
            return Move(num_bytes=part * CONNECTIONS, seconds=time.perf_counter() - began_s)
    except OSError as error:
        raise RunError(f"cannot send to {address}:{port}: {error}. Open all TCP ports between the nodes") from error
    finally:
        for connection in connections:
            connection.close()


def _send(connection: socket.socket, num_bytes: int) -> None:
    piece = memoryview(bytes(_PIECE_BYTES))
    left = num_bytes
    while left:
        connection.sendall(piece[: min(left, _PIECE_BYTES)])
        left -= min(left, _PIECE_BYTES)
    # The system takes bytes long before they are there. Only the other node's answer says that they are.
    if connection.recv(1) != b"+":
        raise ConnectionError("the other node closed the connection")


def _receive(connection: socket.socket, token: bytes) -> None:
    connection.settimeout(_SILENCE_S)
    buffer = bytearray(_PIECE_BYTES)
    if not hmac.compare_digest(_exactly(connection, _TOKEN_BYTES), token):
        return
    (left,) = _HEADER.unpack(_exactly(connection, _HEADER.size))
    while left:
        got = connection.recv_into(buffer, min(left, _PIECE_BYTES))
        if not got:
            return
        left -= got
    connection.sendall(b"+")


def _exactly(connection: socket.socket, num_bytes: int) -> bytes:
    content = b""
    while len(content) < num_bytes and (more := connection.recv(num_bytes - len(content))):
        content += more
    return content.ljust(num_bytes, b"\0")
