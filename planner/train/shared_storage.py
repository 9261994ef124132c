"""Checks that all workers use the same storage."""

import socket
import uuid

from planner.errors import StoreError
from planner.store.storage import Storage
from planner.train.world import World


def require_shared_storage(world: World, storage: Storage) -> None:
    """Check that every rank can read what rank 0 writes.

    With a path on each host's own disk, training would seem to work but lose all shards except the first host's.

    Raises:
        StoreError: on every worker, if one of them does not see it.
    """
    nonce = world.from_first(lambda: uuid.uuid4().hex)
    name = f"probe-{nonce}"
    world.from_first(lambda: storage.write(name, nonce.encode()))
    hosts = world.gather(socket.gethostname())

    def read() -> None:
        if storage.read_from(name, 0) != nonce.encode():
            raise StoreError(
                f"{storage.url}: {hosts[world.rank]} does not see what {hosts[0]} wrote there. "
                "Set checkpoint.path to storage that every node shares"
            )

    try:
        world.agree(read)
    finally:
        # `agree` raises on all workers or on none, so all of them are here, and a collective may follow.
        world.from_first(lambda: storage.delete(name))
