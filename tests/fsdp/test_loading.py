"""Token files and loader processes in whole generations: the run is equal, and all workers raise its errors."""

import multiprocessing
import os
import signal

import pytest
from worker_functions import make_job, records, run_job

from planner.data.prepare_tokens import prepare
from planner.errors import ResumeRefused, TrainingFailed
from planner.job import JsonlData
from planner.provenance.audit import audit
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = pytest.mark.fsdp


@pytest.fixture
def tokens(texts, tmp_path):
    """The texts as a token file: what changes in a job that moves to it."""
    prepare(JsonlData(kind="jsonl", path=texts), tmp_path / "tokens")
    return {"kind": "tokens", "path": str(tmp_path / "tokens")}


def run_and_count(rank, job, url, stop_at):
    """Where a generation ended, and the processes that it left."""
    outcome = run_job(rank, job, url, stop_at)
    return outcome.step, len(multiprocessing.active_children())


def test_a_run_moves_to_its_tokens_and_to_loader_processes(workers, texts, tokens, tmp_path):
    """Refused until it is named; then the same samples to the bit, and clean as a whole; no process stays behind."""
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    job = make_job(texts, steps=9)
    workers.run(run_job, 1, job, str(whole))
    workers.run(run_job, 2, job, str(moved), 3)
    job = make_job(texts, steps=9, data=tokens, workers={"loader_processes": 1})
    with pytest.raises(ResumeRefused, match=r"another data \(.*data.kind: jsonl -> tokens.*--accept data"):
        workers.run(run_job, 1, job, str(moved))
    outcome = workers.run(run_job, 1, job, str(moved), 2, ["data"])
    assert outcome[0].step == 5
    assert workers.run(run_and_count, 2, job, str(moved), None) == [(9, 0), (9, 0)]
    assert [s["checksum"] for s in records(moved)] == [s["checksum"] for s in records(whole)]
    result = audit(RunFolder(Storage(str(moved))))
    assert result.clean, result.findings
    assert [phase.world_size for phase in result.phases] == [2, 1, 2]


def kill_loader(rank, job, url):
    """The second worker's loader process is killed in the third step, as when its machine is short of memory."""
    from planner.train import loop

    accumulate, calls = loop.accumulate, []

    def kill(*arguments):
        calls.append(None)
        if rank == 1 and len(calls) == 3:
            (process,) = multiprocessing.active_children()
            os.kill(process.pid, signal.SIGKILL)
        return accumulate(*arguments)

    loop.accumulate = kill
    try:
        return run_job(rank, job, url)
    finally:
        loop.accumulate = accumulate


def test_a_killed_loader_process_stops_all_workers_with_a_commit(workers, tokens, tmp_path):
    """One worker's loss travels in the control message; what was done stands, and the run goes on from there."""
    job = make_job(tokens["path"], data=tokens, steps=200, workers={"loader_processes": 1})
    with pytest.raises(TrainingFailed, match="worker 1: a loader process was killed"):
        workers.run(kill_loader, 2, job, str(tmp_path / "run"))
    done = audit(RunFolder(Storage(str(tmp_path / "run"))))
    assert done.clean, done.findings
    assert 3 <= done.steps < 200
