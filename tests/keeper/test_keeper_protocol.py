"""Handshake and framing, against peers that are hostile, slow or broken."""

import contextlib
import json
import os
import socket
import threading
from collections import Counter
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from events import EVENT_S, wait_for
from hypothesis import given
from hypothesis import strategies as st
from keeper_copies import SECRET, listening, make_copy, place

from planner.keeper import handshake, protocol, server
from planner.keeper.addresses import Address
from planner.keeper.client import KeeperClient
from planner.keeper.copies import Copy
from planner.keeper.descriptions import address_of, copy_of, key_of
from planner.keeper.errors import KeeperDamaged, KeeperError, KeeperFull, KeeperGone, OtherKeeperGone
from planner.keeper.handshake import connect, greet
from planner.keeper.protocol import Wire
from planner.keeper.server import Keeper

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

COPY, MEMORY = make_copy({"a": (5, 3), "b": (4,)})


@pytest.fixture
def wires():
    """Two ends of one connection."""
    one, other = socket.socketpair()
    with one, other:
        yield Wire(one, EVENT_S), Wire(other, EVENT_S)


def plain(keeper):
    address = keeper.address_on("n")
    return socket.create_connection((address.host, address.port), EVENT_S)


def until_closed(connection):
    """All that arrives until the peer closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(4096):
            found += part
    return found


# -- handshake


def test_only_who_has_the_secret_is_served(keeper):
    """The client learns what may be wrong. The keeper goes on."""
    with pytest.raises(KeeperGone, match=r"node n0 at .* refuses this secret"):
        KeeperClient(keeper.address_on("n0"), "another").copies()
    with pytest.raises(KeeperGone), KeeperClient(keeper.address_on("n0"), ""):
        pass
    with KeeperClient(keeper.address_on("n0"), SECRET) as client:
        assert client.copies() == []
    with pytest.raises(ValueError, match="secret"):
        Keeper(bound_bytes=1, secret="")


@pytest.mark.parametrize(
    ("serve", "says"),
    [
        (lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(99)), "Something else"),
        (lambda connection: None, "hung up"),  # noqa: ARG005
        (lambda connection: greet(connection, "another"), "refuses this secret"),
    ],
    ids=["a web server", "hangs up", "another launch"],
)
def test_another_server_is_not_taken_for_a_keeper(serve, says):
    """It may listen at a port that a keeper had before."""
    with listening(serve) as address, pytest.raises(KeeperGone, match=says):
        KeeperClient(address, SECRET).copies()


def test_an_address_without_a_keeper_is_an_error():
    """The message names the node and the place."""
    with listening(lambda _: None) as address:
        pass
    with pytest.raises(KeeperGone, match=rf"node n9 at 127\.0\.0\.1:{address.port}: Connection refused"):
        KeeperClient(address, SECRET).copies()


@pytest.mark.parametrize(("host", "port"), [("a" * 100, 1), ("127.0.0.1", 1 << 20), ("a\0b", 1), ("", 1)])
def test_an_invalid_address_is_refused(host, port):
    """It came over the wire, so it may be anything."""
    with pytest.raises(KeeperGone, match="No connection to the keeper of node n9"):
        connect(Address(node="n9", host=host, port=port), SECRET)


def test_a_clients_own_proof_proves_nothing():
    """An impostor that sends it back does not know the secret."""

    def echo(connection):
        connection.sendall(b"planner keeper 1" + bytes(32))
        answer = connection.recv(64, socket.MSG_WAITALL)
        connection.sendall(answer[32:])

    with listening(echo) as address, pytest.raises(KeeperGone, match="does not have the secret"):
        connect(address, SECRET)


def test_nonces_are_fresh(keeper):
    """A proof that somebody overheard is of no use in another connection."""
    seen = set()
    for _ in range(3):
        with plain(keeper) as connection:
            seen.add(connection.recv(48, socket.MSG_WAITALL))
    assert len(seen) == 3
    assert {greeting[:16] for greeting in seen} == {b"planner keeper 1"}


@pytest.fixture(scope="module")
def strangers_keeper():
    with Keeper(bound_bytes=1000, secret=SECRET) as keeper:
        yield keeper


@given(garbage=st.binary(max_size=200))
def test_garbage_gets_no_answer(strangers_keeper, garbage):
    """Whatever a stranger sends, the keeper says its greeting and hangs up."""
    with plain(strangers_keeper) as connection:
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        assert len(until_closed(connection)) in {0, 48}


def test_a_stranger_who_says_nothing_is_hung_up_on(keeper, monkeypatch, client):
    """After the time for a handshake. Others are served then."""
    assert client.copies() == []
    monkeypatch.setattr(handshake, "CONNECT_S", 0.3)  # for the stranger alone
    with plain(keeper) as silent:
        assert len(until_closed(silent)) in {0, 48}
    assert client.copies() == []


def test_a_byte_now_and_then_does_not_extend_the_time_for_a_handshake(keeper, monkeypatch):
    """On a clock of the test's own."""
    now_s = [0.0]
    monkeypatch.setattr(handshake, "CONNECT_S", 1e6)  # no real time counts
    monkeypatch.setattr(handshake, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    with plain(keeper) as slow:
        assert len(slow.recv(48, socket.MSG_WAITALL)) == 48
        slow.sendall(b"x")
        now_s[0] = 1e6
        with contextlib.suppress(OSError):  # the keeper may have hung up
            slow.sendall(b"x")
        assert until_closed(slow) == b""


def test_too_many_connections_are_hung_up_on(keeper, monkeypatch, make_client):
    """When one ends there is room again."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    first, second = make_client(keeper), make_client(keeper)
    assert first.copies() == second.copies() == []
    with pytest.raises(KeeperGone):
        make_client(keeper).copies()
    first.close()
    wait_for(lambda: len(keeper._connections) < 2)
    assert make_client(keeper).copies() == []


# -- requests


CUT = [b"\x00\x00\x00\x09{}", b"\x00"]


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\xff\xff\xff",
        (1 << 27).to_bytes(4),
        b"\x00\x00\x00\x03[]]",
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x00",
        (100_000).to_bytes(4) + b"[" * 100_000,
        b"\x00\x00\x00\x02\xff\xfe",
        *CUT,
    ],
    ids=["4 GB", "128 MB", "no JSON", "a list", "empty", "deep", "no text", "cut", "one byte"],
)
def test_a_broken_header_ends_the_connection(keeper, client, sent):
    """Nothing of the announced size is allocated, and other connections go on."""
    place(client, COPY, MEMORY)
    wire = connect(keeper.address_on("n0"), SECRET)
    wire._socket.sendall(sent)
    if sent in CUT:  # the keeper would wait for the rest. At all others it hangs up by itself
        wire._socket.shutdown(socket.SHUT_WR)
    assert until_closed(wire._socket) == b""
    wire.close()
    client.check(COPY.key)


def test_a_peer_that_stops_within_a_request_is_hung_up_on(make_keeper):
    """Between requests it may be silent for as long as it likes."""
    keeper = make_keeper(silence_s=0.2)
    with KeeperClient(keeper.address_on("n0"), SECRET) as client:
        wire = connect(keeper.address_on("n0"), SECRET)
        wire._socket.sendall(b"\x00\x00\x00\x09{")
        assert until_closed(wire._socket) == b""
        wire.close()
        connected = client._wire
        assert client.copies() == []
        assert client._wire is connected


GOOD_KEY = {"generation": 1, "rank": 0, "slot": 0}


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"do": "burn"},
        {"do": ["read"]},
        {"do": "room", "key": GOOD_KEY},
        {"do": "room", "key": GOOD_KEY, "num_bytes": -1},
        {"do": "room", "key": GOOD_KEY, "num_bytes": True},
        {"do": "room", "key": GOOD_KEY, "num_bytes": 1 << 70},
        {"do": "room", "key": {"generation": 1, "rank": 0}, "num_bytes": 1},
        {"do": "room", "key": {**GOOD_KEY, "slot": "0"}, "num_bytes": 1},
        {"do": "room", "key": [1, 0, 0], "num_bytes": 1},
        {"do": "map"},
        {"do": "check", "key": None},
        {"do": "forget"},
        {"do": "forget", "before_generation": 1.5},
        {"do": "read", "key": GOOD_KEY},
        {"do": "read", "key": GOOD_KEY, "parts": [[0]]},
        {"do": "read", "key": GOOD_KEY, "parts": [[-1, 1]]},
        {"do": "read", "key": GOOD_KEY, "parts": [["a", 1]]},
        {"do": "read", "key": GOOD_KEY, "parts": {"a": 1}},
        {"do": "seal", "copy": {}},
        {"do": "seal", "copy": []},
        {"do": "receive", "copy": None},
        {"do": "replicate", "key": GOOD_KEY, "to": {"node": "n"}},
        {"do": "replicate", "key": GOOD_KEY, "to": {"node": "n", "host": 1, "port": 2}},
        {"do": "replicate", "key": GOOD_KEY, "to": "n"},
    ],
    ids=str,
)
def test_a_wrong_request_is_refused(keeper, client, request_):
    """The connection goes on: the next request is answered."""
    place(client, COPY, MEMORY)
    wire = connect(keeper.address_on("n0"), SECRET)
    wire.send(request_)
    with pytest.raises(KeeperError) as caught:
        wire.answer()
    assert type(caught.value) is KeeperError
    wire.send({"do": "check", "key": GOOD_KEY})
    assert wire.answer() == {}
    wire.close()


SEALED = replace(COPY, pieces=tuple(replace(piece, digest="0" * 32) for piece in COPY.pieces))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("step", -1),
        ("step", "5"),
        ("world_size", 0),
        ("run_id", 7),
        ("facts", []),
        ("pieces", [asdict(COPY.pieces[0])] * 2),
        ("extra", 1),
        *[
            (("pieces", 0, name), value)
            for name, value in [
                ("name", 3),
                ("dtype", None),
                ("shape", [5, -3]),
                ("shape", 7),
                ("shape", [5, 2]),
                ("start", 16),
                ("stop", 0),
                ("offset", -1),
                ("offset", 0.5),
                ("num_bytes", 59),
                ("num_bytes", 0),
                ("digest", 5),
            ]
        ],
    ],
    ids=str,
)
def test_a_wrong_description_is_refused(where, value):
    """Each field by its type and its bounds. A right one is what was sent."""
    right = json.loads(json.dumps(SEALED.as_json()))
    assert copy_of(right) == SEALED
    if isinstance(where, str):
        right[where] = value
    else:
        right[where[0]][where[1]][where[2]] = value
    with pytest.raises(KeeperError, match="description of a copy"):
        copy_of(right)


def test_a_key_and_an_address_are_what_was_sent():
    """After JSON."""
    assert key_of(json.loads(json.dumps(asdict(COPY.key)))) == COPY.key
    address = Address(node="n", host="h", port=1)
    assert address_of(json.loads(json.dumps(asdict(address)))) == address


# -- framing


@pytest.mark.parametrize(
    "error", [KeeperError("a"), KeeperFull("b"), KeeperDamaged("c"), OtherKeeperGone("d")], ids=repr
)
def test_errors_arrive_as_they_were(wires, error):
    """By class and text."""
    one, other = wires
    one.refuse(error)
    with pytest.raises(type(error), match=str(error)) as caught:
        other.answer()
    assert type(caught.value) is type(error)


def test_an_unknown_error_is_a_keepers_error(wires):
    """Of another version of planner. An error of the client's own connection cannot be faked."""
    one, other = wires
    for name in ("KeeperOnFire", "KeeperGone", "ValueError"):
        one.send({"error": name, "message": "m"})
        with pytest.raises(KeeperError) as caught:
            other.answer()
        assert type(caught.value) is KeeperError


def test_a_keeper_at_work_says_so(wires, monkeypatch):
    """So a long request is no silence. It does not say so at once."""
    one, other = wires
    one.say_working()
    monkeypatch.setattr(protocol, "_WORKING_S", -1.0)
    one.say_working()
    one.say_working()
    one.send({"done": 1})
    calls = Counter()
    assert other.answer(lambda: calls.update(["at work"])) == {"done": 1}
    assert calls["at work"] == 2


def test_bytes_are_digested_as_they_pass(wires):
    """Both ends have the same digest, of any size."""
    one, other = wires
    for size in (0, 1, protocol.CHUNK_BYTES * 2 + 5):
        sent, received = os.urandom(size), bytearray(size)
        digests = []
        thread = threading.Thread(target=lambda sent=sent, to=digests: to.append(one.send_digested(memoryview(sent))))
        thread.start()
        digests.append(other.receive_digested(memoryview(received)))
        thread.join(EVENT_S)
        assert not thread.is_alive()
        assert received == sent
        assert len(set(digests)) == 1


def test_a_header_that_is_too_long_is_not_sent(wires, monkeypatch):
    """The connection can be used as before."""
    one, other = wires
    monkeypatch.setattr(protocol, "MAX_HEADER_BYTES", 20)
    with pytest.raises(KeeperError, match="A header of 30 bytes"):
        one.send({"a": "b" * 21})
    one.send({"a": 1})
    assert other.receive() == {"a": 1}


def test_bytes_that_change_on_the_way_are_found():
    """The client compares digests of what was sent and what arrived."""

    def serve(connection):
        wire = greet(connection, SECRET)
        wire.wait()
        wire.send({})
        digest = wire.send_digested(memoryview(b"right"))
        wire.send_digested(memoryview(b"wrong"))
        wire.send({"digests": [digest, digest]})
        wire.wait()

    with listening(serve) as address, KeeperClient(address, SECRET) as client:
        view = memoryview(bytearray(10))
        with pytest.raises(KeeperDamaged, match="1 of 2 ranges changed on the way"):
            client.read(COPY.key, [(0, view[:5]), (5, view[5:])])


class StrangersFile:
    """An open file of another kind than a keeper's memory, of the right size."""

    fd = os.memfd_create("strangers")
    os.truncate(fd, 4)


@pytest.mark.parametrize(
    "answer",
    [
        {"num_bytes": 4},
        {"pid": os.getpid(), "fd": StrangersFile.fd, "name": "planner-x", "num_bytes": 4},
        {"pid": os.getpid(), "fd": StrangersFile.fd, "name": "strangers", "num_bytes": 4},
        {"pid": os.getpid(), "fd": 0, "name": "planner-x", "num_bytes": 4},
        {"pid": 1 << 30, "fd": 3, "name": "planner-x", "num_bytes": 4},
        {"pid": "../..", "fd": 3, "name": "planner-x", "num_bytes": 4},
    ],
    ids=["no place", "another name", "a stranger", "another file", "no process", "a path"],
)
def test_memory_that_is_not_the_keepers_is_not_opened(answer):
    """Its process number may be another machine's, or another process's by now."""

    def serve(connection):
        wire = greet(connection, SECRET)
        wire.wait()
        wire.send(answer)
        wire.wait()

    with listening(serve) as address, KeeperClient(address, SECRET) as client, pytest.raises(KeeperError):
        client.room(COPY.key, 4)


def test_a_copy_is_what_was_sent():
    """Types in `copies.py` survive JSON."""
    assert Copy.from_json(json.loads(json.dumps(COPY.as_json()))) == COPY
