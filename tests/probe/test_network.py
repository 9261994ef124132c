"""Bytes from one node to another, over loopback here."""

import socket

import pytest
from events import EVENT_S

from planner.errors import RunError
from planner.probe.network import Receiver, send

TOKEN = b"t" * 32


@pytest.fixture
def receiver():
    """Listens on loopback."""
    found = Receiver("127.0.0.1", TOKEN)
    yield found
    found.close()


@pytest.mark.parametrize("num_bytes", [4, 4_000, 40_000_000])
def test_the_time_runs_until_all_have_arrived(receiver, num_bytes):
    """The other side answers each connection. One receiver serves any number of transfers."""
    for _ in range(2):
        move = send("127.0.0.1", receiver.port, TOKEN, num_bytes)
        assert move.num_bytes == num_bytes
        assert move.seconds > 0


def test_a_stranger_is_not_served(receiver):
    """Without the token, no byte is read, and others are served on."""
    with pytest.raises(RunError, match=r"cannot send to 127\.0\.0\.1"):
        send("127.0.0.1", receiver.port, b"x" * 32, 4_000_000)
    with socket.create_connection(("127.0.0.1", receiver.port), EVENT_S) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b""
    assert send("127.0.0.1", receiver.port, TOKEN, 1000).num_bytes == 1000


def test_a_node_that_cannot_be_reached_says_where():
    """Nobody listens there any more."""
    receiver = Receiver("127.0.0.1", TOKEN)
    receiver.close()
    with pytest.raises(RunError, match=rf"cannot send to 127.0.0.1:{receiver.port}: .*refused.* Open all TCP ports"):
        send("127.0.0.1", receiver.port, TOKEN, 1000)


def test_an_address_of_another_machine_is_refused():
    """192.0.2.1 belongs to nobody (RFC 5737)."""
    with pytest.raises(RunError, match=r"cannot listen at 192\.0\.2\.1"):
        Receiver("192.0.2.1", TOKEN)
