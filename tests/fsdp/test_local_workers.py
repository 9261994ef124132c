"""Workers of a rehearsal: what one of them does alone ends all, but takes no other test along."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
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


class Group:
    """A double of torch.distributed for one worker, which notes whether its group was ended."""

    def __init__(self, patch):
        self.is_ended = False
        patch.setattr(dist, "FileStore", lambda *_: self)
        patch.setattr(dist, "init_process_group", lambda *_, **__: None)
        patch.setattr(dist, "destroy_process_group", self.end)

    def set(self, *_):
        """Others look it up."""

    def wait(self, *_):
        """All are connected."""

    def end(self):
        self.is_ended = True


@pytest.mark.parametrize(
    ("backend", "error", "is_ended"),
    [
        ("gloo", None, True),
        ("gloo", StoreError("alone"), True),
        ("cpu:gloo,cuda:nccl", None, True),
        ("cpu:gloo,cuda:nccl", StoreError("alone"), False),
        ("cpu:gloo,cuda:nccl", MemoryError("no room"), False),
    ],
)
def test_a_failed_worker_tells_its_error_before_nccl_waits_for_the_others(monkeypatch, backend, error, is_ended):
    """NCCL's group ends when its collectives are done. The others may never join them."""

    def work(_rank):
        if error is not None:
            raise error
        return "done"

    group = Group(monkeypatch)
    found = local_workers._call(work, (), 0, 1, backend, "file")
    assert found == "done" if error is None else isinstance(found, (StoreError, TrainingFailed))
    assert group.is_ended == is_ended


def test_a_full_gpu_is_told_in_a_sentence(monkeypatch):
    """With what to lower, and not by the lines of a traceback."""
    text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80 GiB. See the manual\n"

    def work(_rank):
        raise torch.OutOfMemoryError(text)

    Group(monkeypatch)
    found = local_workers._call(work, (), 1, 2, "gloo", "file")
    lower = "Lower batch.max_micro, or set train.activation_checkpointing"
    assert str(found) == f"worker 1: CUDA out of memory. Tried to allocate 2.00 GiB. {lower}"


@pytest.mark.parametrize(("backend", "are_ended"), [("gloo", False), ("cpu:gloo,cuda:nccl", True)])
def test_workers_whose_group_did_not_end_are_not_used_again(monkeypatch, backend, are_ended):
    """They could not join another group."""
    monkeypatch.setattr(local_workers, "_answers", lambda _pipes: ({}, StoreError("alone")))
    workers = LocalWorkers(0, backend)
    monkeypatch.setattr(workers, "close", lambda: ended.append(backend))
    ended = []
    with pytest.raises(StoreError):
        workers.run(_rank_of, 0)
    assert ended == [backend] * are_ended
