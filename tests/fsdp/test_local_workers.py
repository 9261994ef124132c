"""Workers of a rehearsal: what one of them does alone ends all."""

import os
import signal

import pytest
import torch.distributed as dist

from planner.errors import StoreError, TrainingFailed
from planner.rehearsal import local_workers
from planner.rehearsal.local_workers import LocalWorkers

pytestmark = pytest.mark.fsdp


def _rank_of(rank):
    return rank, dist.get_world_size()


def _fails_alone(rank, number):
    if rank == number:
        raise StoreError("alone")
    signal.pause()  # as in a collective that the other one never joins


def _dies_alone(rank):
    if rank == 1:
        os._exit(1)
    signal.pause()


def test_results_come_by_rank():
    """The processes are kept for the next call."""
    with LocalWorkers(2) as workers:
        assert workers.run(_rank_of, 2) == [(0, 2), (1, 2)]
        assert workers.run(_rank_of, 1) == [(0, 1)]


@pytest.mark.parametrize("number", [0, 1])
def test_an_error_of_one_worker_is_raised_though_the_other_hangs(number, monkeypatch):
    """The other one gets a little time, and is ended then."""
    monkeypatch.setattr(local_workers, "_OTHERS_S", 0.1)
    with LocalWorkers(2) as workers, pytest.raises(StoreError, match="alone"):
        workers.run(_fails_alone, 2, number)


def test_a_dead_worker_ends_the_call():
    """Whatever the other one does."""
    with LocalWorkers(2) as workers, pytest.raises(TrainingFailed, match="worker 1 died"):
        workers.run(_dies_alone, 2)
