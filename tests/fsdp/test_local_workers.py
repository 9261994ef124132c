"""Workers of a rehearsal: what one of them does alone ends all, but takes no other test along."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from kept_workers import KeptWorkers
from mortal_workers import PRELOADED

from planner.errors import StoreError, TrainingFailed
from planner.rehearsal import local_workers
from planner.rehearsal.local_workers import LocalWorkers

pytestmark = pytest.mark.fsdp


@pytest.fixture
def forkserver():
    """It has imported torch, so a worker starts at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


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


def signals_blocked(_rank):
    """For the program below."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


PROGRAM = """
import signal

from planner.rehearsal.local_workers import LocalWorkers
from test_local_workers import signals_blocked

if __name__ == "__main__":
    with LocalWorkers(2) as workers:
        assert all(signal.SIGINT in blocked for blocked in workers.run(signals_blocked, 2))
    assert signal.SIGINT not in signals_blocked(0)
"""


def test_a_ctrl_c_that_the_terminal_sends_to_all_ends_no_worker_with_a_traceback(tmp_path):
    """The parent ends them. Found by hand: each worker printed where it was, and so did one that still imported.

    In a fresh process, as for a command: Python unblocks SIGINT when it starts its first process.
    """
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run([sys.executable, "program.py"], cwd=tmp_path, env=environment, check=True)


def test_results_come_by_rank():
    """The processes are kept for the next call."""
    with LocalWorkers(2) as workers:
        assert workers.run(_rank_of, 2) == [(0, 2), (1, 2)]
        assert workers.run(_rank_of, 1) == [(0, 1)]


@pytest.mark.parametrize("number", [0, 1])
def test_an_error_of_one_worker_is_raised_though_the_other_hangs(forkserver, number, monkeypatch):
    """The other one gets a little time, and is ended then."""
    monkeypatch.setattr(local_workers, "_OTHERS_S", 0.1)
    with LocalWorkers(2, context=forkserver) as workers, pytest.raises(StoreError, match="alone"):
        workers.run(_fails_alone, 2, number)


def test_a_dead_worker_ends_the_call(forkserver):
    """Whatever the other one does."""
    with LocalWorkers(2, context=forkserver) as workers, pytest.raises(TrainingFailed, match="worker 1 died"):
        workers.run(_dies_alone, 2)


def _pid_of(rank):
    del rank
    return os.getpid()


@pytest.fixture
def kept(forkserver):
    """Two workers that are started when they are needed."""
    with KeptWorkers(2, forkserver) as workers:
        yield workers


def test_kept_workers_serve_one_call_after_another(kept):
    """An error that all of them raise is no reason for new ones."""
    before = kept.run(_pid_of, 2)
    with pytest.raises(TrainingFailed, match="ZeroDivisionError"):
        kept.run(_divide_by_zero, 2)
    assert kept.run(_pid_of, 2) == before


def _divide_by_zero(rank):
    return 1 / (rank - rank)


def test_kept_workers_start_anew_after_one_died(kept):
    """In a call, and between two calls."""
    before = kept.run(_pid_of, 2)
    with pytest.raises(TrainingFailed, match="worker 1 died"):
        kept.run(_dies_alone, 2)
    between = kept.run(_pid_of, 2)
    assert not set(before) & set(between)
    process, _ = kept._local._workers[0]
    process.kill()
    process.join()
    assert not set(between) & set(kept.run(_pid_of, 2))


def test_kept_workers_start_anew_after_a_test_ran_out_of_time(kept, monkeypatch):
    """Its answers, left in the pipes, would be taken for those of the next call."""
    before = kept.run(_pid_of, 2)
    with monkeypatch.context() as patch:
        patch.setattr(local_workers, "_answers", _out_of_time)
        with pytest.raises(KeyboardInterrupt):
            kept.run(_pid_of, 2)
    assert not set(before) & set(kept.run(_pid_of, 2))


def _out_of_time(*_):
    raise KeyboardInterrupt
