"""How two peers of one launch recognize each other: both prove that they have the launch's secret.

Each side sends 32 random bytes, and proves by HMAC-SHA-256 over both that it has the secret. From a peer without a
proof, these fixed 64 bytes are all that is read. Nobody can send a peer's own proof back to it, because a proof names
the role. What follows is neither encrypted nor signed: the network between the nodes must be one that the launch may
trust, as for torch's own traffic.
"""

import hashlib
import hmac
import secrets
import socket
import time

from planner.keeper.addresses import Address
from planner.keeper.errors import KeeperGone
from planner.keeper.protocol import SILENCE_S, Wire, text

CONNECT_S = 5.0
"""for the connection and the handshake together"""

_MAGIC = b"planner keeper 1"
_NONCE_BYTES, _PROOF_BYTES = 32, 32
# A host that is gone without a word is noticed after 30 + 3 * 10 s, also between requests.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


def connect(address: Address, secret: str, silence_s: float = SILENCE_S) -> Wire:
    """Connect to a keeper.

    Raises:
        KeeperGone: nothing answers there within 5 s, or what answers does not have the secret.
    """
    deadline = time.monotonic() + CONNECT_S
    place = f"the keeper of node {address.node} at {address.host}:{address.port}"
    connection = None
    try:
        connection = socket.create_connection((address.host, address.port), timeout=CONNECT_S)
        _set_up(connection)
        _prove_as_client(connection, secret, deadline)
    except (OSError, ValueError, OverflowError, KeeperGone) as error:  # a host may be no name, a port no port
        if connection is not None:
            connection.close()
        why = text(error) if isinstance(error, OSError) else str(error)
        raise KeeperGone(f"No connection to {place}: {why}") from error
    return Wire(connection, silence_s)


def greet(connection: socket.socket, secret: str, silence_s: float = SILENCE_S) -> Wire:
    """Answer a client that has connected. The caller closes the connection if this fails.

    Raises:
        KeeperGone, OSError: the client has ended, does not have the secret, or took more than 5 s.
    """
    deadline = time.monotonic() + CONNECT_S
    _set_up(connection)
    nonces = secrets.token_bytes(_NONCE_BYTES)
    _send(connection, _MAGIC + nonces, deadline)
    answer = _receive(connection, _NONCE_BYTES + _PROOF_BYTES, deadline)
    nonces += answer[:_NONCE_BYTES]
    if not hmac.compare_digest(answer[_NONCE_BYTES:], _proof(secret, b"client", nonces)):
        raise KeeperGone("The client does not have the secret of this launch.")
    _send(connection, _proof(secret, b"keeper", nonces), deadline)
    return Wire(connection, silence_s)


def _prove_as_client(connection: socket.socket, secret: str, deadline: float) -> None:
    greeting = _receive(connection, len(_MAGIC) + _NONCE_BYTES, deadline)
    if not greeting.startswith(_MAGIC):
        raise KeeperGone("Something else listens there, or a keeper of another version of planner.")
    own = secrets.token_bytes(_NONCE_BYTES)
    nonces = greeting[len(_MAGIC) :] + own
    _send(connection, own + _proof(secret, b"client", nonces), deadline)
    proof = _receive(connection, _PROOF_BYTES, deadline, "It refuses this secret: it may be another launch's keeper.")
    if not hmac.compare_digest(proof, _proof(secret, b"keeper", nonces)):
        raise KeeperGone("It does not have the secret of this launch.")


def _proof(secret: str, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret.encode(), _MAGIC + role + nonces, hashlib.sha256)


def _set_up(connection: socket.socket) -> None:
    """Small headers go at once. Buffers are left to Linux: a size set by hand would turn its own tuning off."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _send(connection: socket.socket, data: bytes, deadline: float) -> None:
    connection.settimeout(_left_s(deadline))
    connection.sendall(data)


def _receive(connection: socket.socket, num_bytes: int, deadline: float, if_closed: str = "It hung up.") -> bytes:
    found = b""
    while len(found) < num_bytes:
        connection.settimeout(_left_s(deadline))
        part = connection.recv(num_bytes - len(found))
        if not part:
            raise KeeperGone(if_closed)
        found += part
    return found


def _left_s(deadline: float) -> float:
    """Raises TimeoutError if nothing is left."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
