"""Generations on worker processes whose nodes have keepers: what the workers run, and the keepers themselves."""

import mmap
import threading
from contextlib import contextmanager
from dataclasses import asdict

from events import EVENT_S

from planner.keeper.addresses import Keepers
from planner.keeper.client import KeeperClient
from planner.keeper.process import started
from planner.train.generation import train
from planner.train.hooks import Hooks
from planner.train.setup import Launch
from planner.train.world import cpu_device

SECRET = "open-sesame-0123456789"
BOUND_BYTES = 2**28


def run_kept(
    rank,
    job,
    url,
    nodes,
    addresses,
    stop_at=None,
    may_hold=True,
    kill_at=None,
    accept=(),
    keeper_pid=0,
    before_step=None,
):
    """One generation on `nodes[rank]`. The last rank asks to stop before step `stop_at`, or dies before `kill_at`.

    With `keeper_pid`, rank 0 kills this keeper before step 3. `before_step` gets the number of each step, and waits for
    what must be done before it: by default for all that is published or written.
    """
    import os
    import signal

    import torch

    reports = []

    def should_stop(step):
        (before_step or join_background)(step)
        if keeper_pid and rank == 0 and step == 3:
            os.kill(keeper_pid, signal.SIGKILL)
        if kill_at is not None and step >= kill_at and rank == torch.distributed.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return stop_at is not None and rank == torch.distributed.get_world_size() - 1 and step >= stop_at

    hooks = Hooks(
        report=reports.append,
        should_stop=should_stop,
        may_hold=lambda: may_hold,
        keepers=lambda: Keepers(node=nodes[rank], addresses=tuple(addresses), secret=SECRET),
    )
    launch = Launch(job=job, url=url, launch_id="kept", accept=frozenset(accept), keeper_secret=SECRET)
    return train(launch, cpu_device, hooks)


def join_background(_step):
    """Wait until what this process publishes or writes is done."""
    for thread in threading.enumerate():
        if thread.name == "planner-commit":
            thread.join(EVENT_S)
            assert not thread.is_alive()


def run_kept_texts(rank, *arguments):
    """`run_kept` for a model of transformers, which has no tokenizer: over the bytes of the texts."""
    from planner.data import ahead_sets
    from planner.data.tokenizer import ByteTokenizer

    ahead_sets.tokenizer_of = lambda _model: ByteTokenizer()
    return run_kept(rank, *arguments)


def damage(address, key):
    """Change a byte of a copy in a keeper's memory, behind its back."""
    with KeeperClient(address, SECRET) as client, client._request({"do": "map", "key": asdict(key)}) as wire:
        client._opened(key, wire.answer(), mmap.ACCESS_WRITE)[0] ^= 1


def copies_in(address):
    """The copies that a keeper has."""
    with KeeperClient(address, SECRET) as client:
        return client.copies()


class Cluster:
    """Nodes with keepers. A node's end is its keeper's."""

    def __init__(self):
        self.keepers = {}

    def add(self, *names, bound_bytes=BOUND_BYTES):
        for name in names:
            self.keepers[name] = started(name, SECRET, bound_bytes)

    def kill(self, *names):
        for name in names:
            self.keepers.pop(name).kill()

    def address(self, name):
        return self.keepers[name].address

    @property
    def addresses(self):
        return tuple(keeper.address for keeper in self.keepers.values())

    def close(self):
        for keeper in self.keepers.values():
            keeper.close()


@contextmanager
def cluster(*names):
    made = Cluster()
    try:
        made.add(*names)
        yield made
    finally:
        made.close()
