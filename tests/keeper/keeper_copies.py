"""Copies for the tests of keepers: a model's tensors, cut as FSDP cuts them."""

import contextlib
import math
import socket
import threading
from pathlib import Path

from events import EVENT_S

from planner.keeper.addresses import Address
from planner.keeper.copies import Copy, CopyKey, Piece
from planner.keeper.errors import KeeperGone

RUN = "run-1"
SECRET = "a secret"


def cut(shape, world_size, rank):
    """The elements [start, stop) of a rank: rows as `torch.chunk` gives them, the last ones fewer or none."""
    rows = -(-shape[0] // world_size)
    row = math.prod(shape[1:])
    return min(rank * rows, shape[0]) * row, min((rank + 1) * rows, shape[0]) * row


def byte_of(name, position):
    """What byte `position` of a whole tensor is."""
    return (hash_of(name) + 31 * position) % 251


def hash_of(name):
    return sum(name.encode())


def content(name, start, stop):
    """The bytes [start, stop) of a whole tensor."""
    return bytes(byte_of(name, position) for position in range(start, stop))


def make_copy(
    tensors, *, rank=0, world_size=1, generation=1, step=5, slot=0, replicated=(), gap=3, run_id=RUN, facts=None
):
    """A rank's copy of float32 tensors (name -> shape), and its memory. `gap` bytes lie before each piece."""
    pieces, memory = [], bytearray()
    for name, shape in tensors.items():
        start, stop = (0, math.prod(shape)) if name in replicated else cut(shape, world_size, rank)
        memory += b"\xff" * gap
        pieces.append(
            Piece(
                name=name,
                dtype="float32",
                shape=tuple(shape),
                start=start,
                stop=stop,
                offset=len(memory),
                num_bytes=4 * (stop - start),
            )
        )
        memory += content(name, 4 * start, 4 * stop)
    if facts is None:
        facts = {"step": step} if rank == 0 else {}
    key = CopyKey(generation=generation, rank=rank, slot=slot)
    copy = Copy(key=key, run_id=run_id, step=step, world_size=world_size, pieces=tuple(pieces), facts=facts)
    return copy, memory


def place(client, copy, memory):
    """Write a copy into a keeper's memory and seal it. Returns it with its digests."""
    room = client.room(copy.key, len(memory))
    room[:] = memory
    return client.seal(copy)


def damage(pid, client, key, position):
    """Change a byte of the memory that the keeper in process `pid` gave this client."""
    name, _ = client._mapped[key]
    path = next(path for path in Path(f"/proc/{pid}/fd").iterdir() if name in str(path.readlink()))
    with path.open("r+b", buffering=0) as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def is_buffer(path, size):
    """Whether an entry of /proc/<pid>/fd is a keeper's buffer of `size` bytes."""
    try:
        return "/memfd:planner-" in str(path.readlink()) and path.stat().st_size == size
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def listening(serve):
    """Something that is no keeper: `serve` gets each connection. Yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept():
        with contextlib.suppress(OSError, KeeperGone):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError, KeeperGone):
                    serve(connection)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield Address(node="n9", host="127.0.0.1", port=listener.getsockname()[1])
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(EVENT_S)
    assert not thread.is_alive()
