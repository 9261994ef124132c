"""Loading ahead: the same micro-batches and errors from a thread and from processes, and nothing left behind."""

import multiprocessing
import os
import signal
import threading
from ctypes import c_uint64
from pathlib import Path

import numpy as np
import pytest
import torch
from events import EVENT_S, wait_for

from planner.data.samples import Text
from planner.errors import DataError, TrainingFailed
from planner.order.order import Order
from planner.plan import BatchSizes, make_plan
from planner.train.batches import Loader
from planner.train.loader_processes import _LoaderProcess
from planner.train.prefetch import Prefetcher
from planner.train.sample_batches import text_batch

pytestmark = pytest.mark.process

CPU = torch.device("cpu")
ORDER = Order(num_rows=40, seed=1)


class Rows:
    """A data set in memory: row i has i % 5 + 2 tokens, all of them i."""

    num_rows = 40
    fingerprint = "f" * 64

    def __init__(self, broken=-1):
        self.broken = broken

    def samples(self, rows):
        if self.broken in rows:
            raise DataError(f"row {self.broken} has gone")
        return [Text.of(np.full(row % 5 + 2, row, dtype=np.int32)) for row in rows]


def loader_of(rows):
    """Four samples a step, in two rounds."""
    plan = make_plan(BatchSizes(global_batch=4, max_micro=2), 1)
    return Loader(dataset=rows, order=ORDER, plan=plan, rank=0, make_batch=text_batch)


def require_equal(loaded, expected):
    assert [batch.rows for batch in loaded] == [batch.rows for batch in expected]
    assert [batch.position for batch in loaded] == [batch.position for batch in expected]
    for ours, theirs in zip(loaded, expected, strict=True):
        assert torch.equal(ours.sequences.inputs, theirs.sequences.inputs)
        assert torch.equal(ours.sequences.labels, theirs.sequences.labels)


@pytest.mark.parametrize("processes", [0, 2])
def test_steps_come_in_order_and_an_error_is_the_loaders_own(processes):
    """From a thread and from processes. Steps after a broken row may be loaded already, but are not returned."""
    broken = int(ORDER.rows(20, 24)[1])
    loader = loader_of(Rows(broken))
    random_state, others = torch.get_rng_state(), set(multiprocessing.active_children())
    prefetcher = Prefetcher(loader.load, range(8, 8 + 9 * 4, 4), processes=processes, device=CPU)
    try:
        for cursor in [8, 12, 16]:
            require_equal(prefetcher.start().result(EVENT_S).batches, loader.load(cursor).batches)
        with pytest.raises(DataError, match=f"^row {broken} has gone$"):
            prefetcher.start().result(EVENT_S)
    finally:
        prefetcher.close()
    assert torch.equal(torch.get_rng_state(), random_state)
    assert set(multiprocessing.active_children()) == others
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("planner-load")]


def test_a_run_that_stops_early_waits_for_no_step():
    """A run that stops for a resize has requested a step that it will not take. Its processes end."""
    others = set(multiprocessing.active_children())
    prefetcher = Prefetcher(loader_of(Rows()).load, range(0, 10**9, 4), processes=1, device=CPU)
    prefetcher.start().result(EVENT_S)
    prefetcher.start()
    prefetcher.close()
    assert set(multiprocessing.active_children()) == others


def test_a_load_that_hangs_is_left_behind(monkeypatch, caplog):
    """If a disk hangs, the error that ended the loop is still reported."""
    monkeypatch.setattr("planner.train.prefetch._CLOSE_S", 0.2)
    answers = threading.Event()
    prefetcher = Prefetcher(lambda _cursor: answers.wait(EVENT_S) and [], range(0, 8, 4), processes=0, device=CPU)
    pending = prefetcher.start()
    prefetcher.close()
    assert not pending.done()
    assert "were not read within" in caplog.text
    answers.set()
    assert pending.result(EVENT_S) == []


def much(_cursor):
    """More than a pipe holds."""
    return [np.zeros(10_000_000, dtype=np.uint8)]


def test_a_process_that_is_killed_in_the_midst_of_a_step_is_named():
    """As when the machine is short of memory, with a step too large for the pipe."""
    process = _LoaderProcess(much, progress_of_nobody())
    process.ask(0)
    process.ask(1)
    assert len(process.answer()[0]) == 10_000_000
    assert process._pipe.poll(EVENT_S)  # it has begun to send the next one
    os.kill(process._process.pid, signal.SIGKILL)
    process.ask(2)
    with pytest.raises(TrainingFailed, match=r"was killed by signal 9, .*Lower workers\.loader_processes"):
        process.answer()
    process.stop()
    process.join()


def divide(cursor):
    return [1 // cursor]


def leave(_cursor):
    os._exit(3)


def progress_of_nobody():
    return multiprocessing.get_context("spawn").RawValue(c_uint64)


def test_other_ends_of_a_process_are_told():
    """An error that is not planner's has its traceback. A process that exits has its code."""
    process = _LoaderProcess(divide, progress_of_nobody())
    process.ask(0)
    process.ask(1)
    with pytest.raises(RuntimeError, match=r"(?s)in a loader process:.*return \[1 // cursor\].*ZeroDivisionError"):
        process.answer()
    assert process.answer() == [1]
    process.stop()
    process.join()
    process = _LoaderProcess(leave, progress_of_nobody())
    process.ask(0)
    with pytest.raises(TrainingFailed, match="ended with exit code 3"):
        process.answer()
    process.join()


def orphan_maker(pipe):
    """A worker that is killed while its loader process lives."""
    prefetcher = Prefetcher(loader_of(Rows()).load, range(0, 10**9, 4), processes=1, device=CPU)
    for _ in range(2):
        prefetcher.start().result(EVENT_S)
    pipe.send([process.pid for process in multiprocessing.active_children()])
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_loader_process_ends_when_its_worker_is_killed():
    """Its pipe ends."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    multiprocessing.get_context("spawn").Process(target=orphan_maker, args=(theirs,)).start()
    assert ours.poll(EVENT_S)
    (pid,) = ours.recv()
    wait_for(lambda: not is_alive(pid))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
