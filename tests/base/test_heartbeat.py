"""Work that this process and its loader processes have done."""

import threading

import torch

from planner.base import heartbeat
from planner.train.prefetch import Prefetcher


def test_each_beat_is_another_number():
    """From any thread, with any arguments."""
    seen = [heartbeat.count()]
    for arguments in [(), (1, 2), ("module", object())]:
        heartbeat.beat(*arguments)
        seen.append(heartbeat.count())
    thread = threading.Thread(target=heartbeat.beat)
    thread.start()
    thread.join()
    seen.append(heartbeat.count())
    assert len(set(seen)) == len(seen)


def load(_cursor):
    """Runs in a loader process."""
    heartbeat.beat()
    return []


def test_what_loader_processes_do_counts_here():
    """They load rows in processes of their own."""
    before = heartbeat.count()
    prefetcher = Prefetcher(load, range(0, 40, 10), processes=1, device=torch.device("cpu"))
    for _ in range(4):
        assert prefetcher.start().result() == []
    prefetcher.close()
    # The first step is loaded here; the child's three beats come on top.
    assert heartbeat.count() == before + 4
