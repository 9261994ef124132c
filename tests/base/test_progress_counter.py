"""Work that this process and its loader processes have done."""

import threading

import pytest
import torch
from events import EVENT_S

from planner.base import progress_counter
from planner.train.prefetch import Prefetcher


def test_each_unit_of_work_changes_the_number():
    """From any thread, with any arguments."""
    seen = [progress_counter.work_done()]
    for arguments in [(), (1, 2), ("module", object())]:
        progress_counter.count_work(*arguments)
        seen.append(progress_counter.work_done())
    thread = threading.Thread(target=progress_counter.count_work)
    thread.start()
    thread.join(EVENT_S)
    assert not thread.is_alive()
    seen.append(progress_counter.work_done())
    assert len(set(seen)) == len(seen)


def load(_cursor):
    """Runs in a loader process."""
    progress_counter.count_work()
    return []


@pytest.mark.process
def test_work_of_loader_processes_is_counted():
    """They load rows in processes of their own."""
    before = progress_counter.work_done()
    prefetcher = Prefetcher(load, range(0, 40, 10), processes=1, device=torch.device("cpu"))
    for _ in range(4):
        assert prefetcher.start().result(EVENT_S) == []
    prefetcher.close()
    # The first step is loaded here; the child's three beats come on top.
    assert progress_counter.work_done() == before + 4
