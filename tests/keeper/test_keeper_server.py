"""A keeper and its clients: rooms, seals, reads, replicas, and what happens when one of them dies."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pytest
from events import EVENT_S
from keeper_copies import SECRET, damage, listening, make_copy, place

from planner.keeper import requests
from planner.keeper.client import KeeperClient
from planner.keeper.copies import with_digests
from planner.keeper.errors import KeeperDamaged, KeeperError, KeeperFull, KeeperGone, OtherKeeperGone
from planner.keeper.handshake import connect, greet
from planner.keeper.links import Links
from planner.keeper.memory import Memory, Table
from planner.keeper.process import started

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

TENSORS = {"a": (5, 3), "empty": (0, 4), "b": (7,)}
COPY, MEMORY = make_copy(TENSORS)
KEY = COPY.key


@pytest.fixture
def other(make_keeper):
    return make_keeper()


@pytest.fixture
def raw(keeper):
    """A connection without a client, to stop in the middle of a request."""
    wire = connect(keeper.address_on("n0"), SECRET)
    yield wire
    wire.close()


def read_all(client, key, size):
    target = bytearray(size)
    client.read(key, [(0, memoryview(target))])
    return target


def mapped(client, key, step=None):
    with client.mapped(key, step) as memory:
        return bytes(memory)


def test_a_place_that_was_used_again_is_not_taken_for_the_step_that_it_had(client, make_client, keeper):
    """Whoever has seen the description of a step names it. A load must not mix two steps."""
    place(client, COPY, MEMORY)
    reader = make_client(keeper)
    reader.check(KEY, COPY.step)
    later = replace(COPY, step=COPY.step + 1)
    place(client, later, MEMORY)
    uses = (
        lambda step: reader.check(KEY, step),
        lambda step: mapped(reader, KEY, step),
        lambda step: reader.read(KEY, [(0, memoryview(bytearray(4)))], step),
    )
    for use in uses:
        with pytest.raises(KeeperError, match=rf"no sealed copy of .*own: of step {later.step}\)"):
            use(COPY.step)
        use(later.step)


def test_memory_that_is_written_while_it_is_read_is_of_no_use(client, make_client, keeper):
    """The reader is told at the end, also if the place is whole again by then."""
    place(client, COPY, MEMORY)
    reader = make_client(keeper)
    with pytest.raises(KeeperError, match="was opened for writing again, or freed"), reader.mapped(KEY, COPY.step):
        place(client, COPY, MEMORY)
    assert mapped(reader, KEY, COPY.step) == MEMORY


def test_a_replica_of_a_step_is_found_behind_an_own_copy_of_another(client, other, make_client):
    """A key may be in both tables."""
    place(client, COPY, MEMORY)
    client.replicate(KEY, other.address_on("n1"))
    there = make_client(other)
    place(there, replace(COPY, step=COPY.step + 1), MEMORY[::-1])
    assert mapped(there, KEY, COPY.step) == MEMORY
    assert mapped(there, KEY, COPY.step + 1) == MEMORY[::-1]


def test_a_copy_counts_once_it_is_sealed(keeper, client, make_client):
    """From any node: what was written is what is read, and the description has all digests."""
    room = client.room(KEY, len(MEMORY))
    room[:] = MEMORY
    elsewhere = make_client(keeper)
    assert elsewhere.copies() == []
    for use in (elsewhere.check, lambda key: mapped(elsewhere, key), lambda key: elsewhere.read(key, [])):
        with pytest.raises(KeeperError, match=r"no sealed copy of generation 1, rank 0, slot 0 .own: not sealed"):
            use(KEY)
    sealed = client.seal(COPY)
    assert elsewhere.copies() == [sealed]
    assert {len(piece.digest) for piece in sealed.pieces} == {32}
    assert replace(sealed, pieces=COPY.pieces) == COPY
    elsewhere.check(KEY)
    assert read_all(elsewhere, KEY, len(MEMORY)) == MEMORY
    assert mapped(elsewhere, KEY) == MEMORY
    with elsewhere.mapped(KEY) as memory:
        assert memory.readonly
    assert keeper.used_bytes == len(MEMORY)


def test_many_ranges_are_read_in_one_request(client):
    """In the order in which they are named, overlapping or empty, into parts of one memory."""
    place(client, COPY, MEMORY)
    target = bytearray(12)
    view = memoryview(target)
    client.read(KEY, [(7, view[:5]), (3, view[5:9]), (0, view[9:9]), (3, view[9:])])
    assert target == MEMORY[7:12] + MEMORY[3:7] + MEMORY[3:6]
    client.read(KEY, [])
    for wrong in ((len(MEMORY) - 11, view), (1 << 63, view)):
        with pytest.raises(KeeperError, match="no range within"):
            client.read(KEY, [wrong])
    with pytest.raises(ValueError, match="read-only"):
        client.read(KEY, [(0, memoryview(b"abc"))])
    client.check(KEY)  # the connection is as it was


def test_room_again_unseals(client):
    """Memory of the same size stays the same, with what it holds."""
    place(client, COPY, MEMORY)
    room = client.room(KEY, len(MEMORY))
    assert room == MEMORY
    assert client.room(KEY, len(MEMORY)) is room
    assert client.copies() == []
    with pytest.raises(KeeperError, match="own: not sealed"):
        client.check(KEY)
    assert len(client.room(KEY, 10)) == 10


def test_a_copy_that_does_not_fit_is_refused(client):
    """Its place is too small, or there is none."""
    with pytest.raises(KeeperError, match="no place for generation 1, rank 0, slot 0"):
        client.seal(COPY)
    client.room(KEY, len(MEMORY) - 1)
    with pytest.raises(KeeperError, match=f"describes {len(MEMORY)} bytes. Its place has {len(MEMORY) - 1}"):
        client.seal(COPY)
    assert client.copies() == []


def test_the_bound_holds(client):
    """For a worker's own copies, with what is sealed left alone."""
    place(client, COPY, MEMORY)
    with pytest.raises(KeeperFull, match="The keeper has 1048576 of 1048576 bytes left"):
        client.room(KEY, (1 << 20) + 1)
    client.check(KEY)


def test_slots_are_used_in_turns(client):
    """While one is written again, the other one counts."""
    second, memory = make_copy(TENSORS, slot=1, step=6)
    place(client, COPY, MEMORY)
    place(client, second, memory)
    client.room(KEY, len(MEMORY))
    assert [copy.step for copy in client.copies()] == [6]


def test_a_changed_byte_is_found(client):
    """The piece is named, and another one's check passes."""
    second, memory = make_copy({"c": (100,)}, slot=1)
    place(client, COPY, MEMORY)
    place(client, second, memory)
    damage(os.getpid(), client, KEY, len(MEMORY) - 1)
    with pytest.raises(KeeperDamaged, match=r"step 5: the memory of 1 piece of 3 differs .* first is 'b'"):
        client.check(KEY)
    client.check(second.key)


def test_a_replica_is_the_same_copy(client, other, make_client):
    """It is listed, checked and read there, and forgotten with its generation."""
    sealed = place(client, COPY, MEMORY)
    client.replicate(KEY, other.address_on("n1"))
    there = make_client(other, "n1")
    assert there.copies() == [sealed]
    there.check(KEY)
    assert read_all(there, KEY, len(MEMORY)) == MEMORY
    own, memory = make_copy(TENSORS, rank=1, world_size=2)
    place(there, own, memory)
    assert Counter(copy.key.rank for copy in there.copies()) == {0: 1, 1: 1}
    there.forget(1)
    assert len(there.copies()) == 2
    there.forget(2)
    assert there._mapped == {}
    assert there.copies() == []
    assert other.used_bytes == 0
    assert client.copies() == [sealed]


def test_a_changed_byte_is_not_replicated(client, other, make_client):
    """The other keeper takes the digests by itself."""
    place(client, COPY, MEMORY)
    damage(os.getpid(), client, KEY, COPY.pieces[0].offset)
    with pytest.raises(KeeperDamaged, match=r"node n1: .* first is 'a'"):
        client.replicate(KEY, other.address_on("n1"))
    assert make_client(other).copies() == []


def test_a_replica_that_does_not_fit_is_refused(client, keeper, make_keeper):
    """With the numbers of the other keeper. Both connections go on."""
    place(client, COPY, MEMORY)
    full = make_keeper(9)
    for _ in range(2):
        with pytest.raises(KeeperFull, match=r"The keeper of node n1: .* of 9 bytes left"):
            client.replicate(KEY, full.address_on("n1"))
    assert len(keeper._desk.links._idle[full.address_on("n1")]) == 1
    client.check(KEY)


def test_a_keeper_that_is_gone_is_told_from_the_own_one(client, other):
    """The own keeper goes on."""
    place(client, COPY, MEMORY)
    client.replicate(KEY, other.address_on("n1"))
    other.close()
    with pytest.raises(OtherKeeperGone, match="n1"):
        client.replicate(KEY, other.address_on("n1"))
    client.check(KEY)


def test_a_broken_connection_between_keepers_is_made_anew(client, keeper, other, make_client):
    """It may have broken since the last copy."""
    place(client, COPY, MEMORY)
    client.replicate(KEY, other.address_on("n1"))
    (kept,) = keeper._desk.links._idle[other.address_on("n1")]
    kept._socket.shutdown(socket.SHUT_RDWR)
    make_client(other).forget(2)
    client.replicate(KEY, other.address_on("n1"))
    assert len(make_client(other).copies()) == 1
    (fresh,) = keeper._desk.links._idle[other.address_on("n1")]
    assert fresh is not kept
    buffer = other._desk.memory.sealed(KEY).buffer
    client.replicate(KEY, other.address_on("n1"))
    assert keeper._desk.links._idle[other.address_on("n1")] == [fresh]
    assert other._desk.memory.sealed(KEY).buffer is buffer


def test_keepers_replicate_to_each_other_at_once(make_keeper, make_client):
    """Several workers of both nodes, over and over."""
    keepers = [make_keeper(), make_keeper()]

    def work(rank):
        client = make_client(keepers[rank % 2])
        for step in range(10):
            copy, memory = make_copy(TENSORS, rank=rank, world_size=4, slot=step % 2, step=step)
            place(client, copy, memory)
            client.replicate(copy.key, keepers[1 - rank % 2].address_on("other"))
            client.check(copy.key)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    for keeper in keepers:
        assert sorted((copy.key.rank, copy.step) for copy in make_client(keeper).copies()) == [
            (rank, step) for rank in range(4) for step in (8, 9)
        ]


def test_a_replica_is_not_sealed_while_it_is_received(raw, keeper, make_client):
    """The other slot is. A sender that dies in the middle leaves a place that is not sealed."""
    second, memory = make_copy(TENSORS, slot=1, step=6)
    sender, there = make_client(keeper), make_client(keeper)
    sealed = [place(sender, COPY, MEMORY), place(sender, second, memory)]
    for copy, bytes_ in zip(sealed, (MEMORY, memory), strict=True):
        raw.send({"do": "receive", "copy": copy.as_json()})
        raw.answer()
        raw.send_bytes(memoryview(bytes_))
        raw.answer()
    sender.forget(2)
    assert there.copies() == []
    for copy, bytes_ in zip(sealed, (MEMORY, memory), strict=True):
        raw.send({"do": "receive", "copy": copy.as_json()})
        raw.answer()
        raw.send_bytes(memoryview(bytes_))
        raw.answer()
    assert there.copies() == sealed
    raw.send({"do": "receive", "copy": sealed[0].as_json()})
    raw.answer()
    raw.send_bytes(memoryview(MEMORY)[:5])
    assert [copy.step for copy in there.copies()] == [6]
    raw.close()
    assert [copy.step for copy in there.copies()] == [6]
    with pytest.raises(KeeperError, match="replicas: not sealed"):
        there.check(KEY)


def test_a_reader_learns_that_the_place_was_opened_for_writing(make_keeper, make_client):
    """Bytes that were sent before may be of two steps."""
    keeper = make_keeper(1 << 30)
    size = 100 << 20  # more than the sockets' buffers hold, so that the keeper is still sending
    writer = make_client(keeper)
    copy, _ = make_copy({"a": (size // 4,)}, gap=0, rank=1, world_size=size)
    copy = replace(copy, pieces=(replace(copy.pieces[0], start=0, stop=size // 4, num_bytes=size),))
    writer.room(copy.key, size)
    writer.seal(copy)
    wire = connect(keeper.address_on("n0"), SECRET)
    wire.send({"do": "read", "key": asdict(copy.key), "parts": [[0, size]]})
    wire.answer()
    writer.room(copy.key, size)
    wire.receive_into(memoryview(bytearray(size)))
    with pytest.raises(KeeperError, match="opened for writing again"):
        wire.answer()
    wire.close()


class Reopens:
    """A connection's end whose place is opened again, with other bytes, while the keeper takes digests."""

    def __init__(self, memory, table):
        self.memory, self.table, self.sent = memory, table, []

    def say_working(self):
        self.memory.open(self.table, KEY, len(MEMORY)).buffer.view[3:] = bytes(len(MEMORY) - 3)

    def send(self, header):
        self.sent.append(header)

    def receive_into(self, view):
        view[:] = MEMORY


@pytest.mark.parametrize("request_", [requests.seal, requests.check, requests.receive])
def test_digests_of_a_place_that_is_opened_again_are_no_damage(request_):
    """And nothing is sealed by them."""
    memory = Memory(1 << 20)
    opened = memory.open(Table.OWN, KEY, len(MEMORY))
    opened.buffer.view[:] = MEMORY
    sealed = with_digests(COPY, opened.buffer.view, lambda: None)
    memory.seal(opened, sealed)
    wire = Reopens(memory, Table.REPLICAS if request_ is requests.receive else Table.OWN)
    header = {"key": asdict(KEY), "copy": json.loads(json.dumps(sealed.as_json()))}
    with pytest.raises(KeeperError, match="opened for writing again") as caught:
        request_(requests.Desk(memory=memory, links=Links(SECRET)), wire, header)
    assert type(caught.value) is KeeperError
    assert len(memory.copies()) == (request_ is requests.receive)


def test_a_place_opened_again_while_it_is_replicated_is_no_damage(client, make_client, keeper):
    """The other keeper's digests differ, because the worker has begun its next copy."""
    place(client, COPY, MEMORY)
    worker = make_client(keeper)

    def serve(connection):
        wire = greet(connection, SECRET)
        wire.wait()
        wire.send({})
        wire.receive_into(memoryview(bytearray(COPY.num_bytes)))
        worker.room(KEY, len(MEMORY))
        wire.refuse(KeeperDamaged("differs"))

    with listening(serve) as address, pytest.raises(KeeperError, match="opened for writing again") as caught:
        client.replicate(KEY, address)
    assert type(caught.value) is KeeperError


def test_the_idle_clock_runs_between_requests(make_keeper, make_client):
    """From the end of the last request. It stands while one is served."""
    now = [100.0]
    keeper = make_keeper(clock=lambda: now[0])
    now[0] = 130.0
    assert keeper.idle_s == 30.0
    client = make_client(keeper)
    client.copies()
    client.copies()  # so the first one has surely ended
    now[0] = 140.0
    wire = connect(keeper.address_on("n"), SECRET)
    copy, _ = make_copy(TENSORS)
    wire.send({"do": "receive", "copy": copy.as_json()})
    wire.answer()
    assert keeper.idle_s == 0.0
    wire.close()


def test_a_closed_keeper_hangs_up(client, keeper):
    """Clients learn of it at once, and it frees its memory."""
    place(client, COPY, MEMORY)
    keeper.close()
    keeper.close()
    keeper.serve_forever()
    assert keeper.used_bytes == 0
    with pytest.raises(KeeperGone, match="n0 at 127"):
        client.check(KEY)


# -- processes


def stop(pid):
    """Stop a child, and wait until it stands."""
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)


@pytest.mark.process
def test_a_keepers_process_ends_in_order(monkeypatch):
    """At the end of the block it needs no signal."""
    monkeypatch.setattr("planner.keeper.process._END_S", EVENT_S)
    process = started("n0", SECRET, 1 << 20)
    with process as address, KeeperClient(address, SECRET) as client:
        place(client, COPY, MEMORY)
    assert process._process.returncode == 0
    process.kill()
    process.close()


@pytest.mark.process
def test_keepers_in_processes_replicate():
    """A keeper has the node's name in its address."""
    with (
        started("n0", SECRET, 1 << 20) as first,
        started("n1", SECRET, 1 << 20) as second,
        KeeperClient(first, SECRET) as near,
        KeeperClient(second, SECRET) as far,
    ):
        place(near, COPY, MEMORY)
        near.replicate(KEY, second)
        assert first.node == "n0"
        assert [copy.key for copy in far.copies()] == [KEY]


@pytest.mark.process
def test_a_request_to_a_killed_keeper_fails():
    """In the middle of a request, and after it. The replica on the other node is there."""
    owner = started("n0", SECRET, 1 << 20)
    with owner, started("n1", SECRET, 1 << 20) as second, KeeperClient(second, SECRET) as far:
        with KeeperClient(owner.address, SECRET) as near, ThreadPoolExecutor(1) as pool:
            place(near, COPY, MEMORY)
            near.replicate(KEY, second)
            stop(owner.pid)
            waiting = pool.submit(near.check, KEY)
            owner.kill()
            with pytest.raises(KeeperGone, match="request: check"):
                waiting.result(EVENT_S)
            with pytest.raises(KeeperGone, match="No connection to the keeper of node n0"):
                near.check(KEY)
        far.check(KEY)
        target = bytearray(20)
        far.read(KEY, [(COPY.pieces[0].offset, memoryview(target))])
        assert target == MEMORY[COPY.pieces[0].offset :][:20]


@pytest.mark.process
def test_a_keeper_that_is_silent_is_gone():
    """It may hang, or its node may be unreachable."""
    owner = started("n0", SECRET, 1 << 20)
    with owner, KeeperClient(owner.address, SECRET, silence_s=0.2) as client:
        stop(owner.pid)
        with pytest.raises(KeeperGone, match="a timeout passed"):
            client.copies()
        os.kill(owner.pid, signal.SIGCONT)
        client._silence_s = EVENT_S
        assert client.copies() == []


WRITES_HALF = """
import json, sys
from planner.keeper.addresses import Address
from planner.keeper.client import KeeperClient
from planner.keeper.copies import CopyKey
client = KeeperClient(Address(**json.loads(sys.argv[1])), "a secret")
room = client.room(CopyKey(generation=1, rank=0, slot=0), int(sys.argv[2]))
room[:20] = bytes(20)
print("half", flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_a_worker_that_dies_while_it_writes_leaves_nothing_that_counts(keeper, client):
    """Its other slot does, and another worker takes the place."""
    second, memory = make_copy(TENSORS, slot=1)
    place(client, COPY, MEMORY)
    place(client, second, memory)
    address = json.dumps(asdict(keeper.address_on("n0")))
    command = [sys.executable, "-c", WRITES_HALF, address, str(len(MEMORY))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout.readline() == b"half\n"
        worker.kill()
    assert [copy.key for copy in client.copies()] == [second.key]
    room = client.room(KEY, len(MEMORY))
    assert room[:20] == bytes(20)
    assert room[20:] == MEMORY[20:]
    room[:] = MEMORY
    client.seal(COPY)
    client.check(KEY)


STARTS_A_KEEPER = """
import os, subprocess, sys
from planner.keeper.process import started
keeper = started("n", "a secret", 1000)
if os.fork() == 0:  # holds the pipe to the keeper open
    print(keeper.pid, os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


@pytest.mark.process
def test_a_keepers_process_ends_with_its_parent():
    """Also when the parent is killed, and another child of the parent still has the pipe."""
    command = [sys.executable, "-c", STARTS_A_KEEPER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        keeper, child = map(int, parent.stdout.readline().split())
        keeper_ends = os.pidfd_open(keeper)
        parent.kill()
        assert select.select([keeper_ends], [], [], EVENT_S)[0]
        os.close(keeper_ends)
        os.kill(child, signal.SIGKILL)


@pytest.mark.process
def test_a_keeper_that_does_not_start_is_an_error(capfd):
    """Its own error is shown above."""
    with pytest.raises(KeeperGone, match="node n did not start"):
        started("n", SECRET, 1000, host="203.0.113.1")
    assert "Cannot assign requested address" in capfd.readouterr().err
