"""One worker fails alone: all of them must stop as one, at once, with what was done in place."""

import errno
from contextlib import contextmanager
from pathlib import Path

import pytest
from events import wait_for
from worker_functions import make_job, records, run_job

from planner.errors import DiskFull, StoreError, TrainingFailed
from planner.provenance.audit import audit
from planner.store.run_folder import RunFolder, commit_name
from planner.store.storage import Storage

pytestmark = pytest.mark.fsdp


def audited(url):
    return audit(RunFolder(Storage(str(url))))


def full_disk_at(rank, job, url, record):
    """Rank 0's ledger cannot take its `record`-th record; the others' disks are fine."""
    append, calls = Storage.append, []

    def fail(self, name, content):
        calls.append(name)
        if rank == 0 and len(calls) == record:
            append(self, name, content[: len(content) // 2])
            raise StoreError(f"{self.url}: cannot use {name}: No space left on device")
        append(self, name, content)

    Storage.append = fail
    try:
        return run_job(rank, job, url)
    finally:
        Storage.append = append


@pytest.mark.parametrize("record", [3, 5])
def test_a_full_disk_stops_all_workers_at_the_same_step(workers, texts, tmp_path, record):
    """The failure travels in the control message; what was committed stays clean, and the run goes on from there."""
    job = make_job(texts, steps=30, checkpoint={"every": 2}, eval={"samples": 3, "every": 100})
    with pytest.raises(StoreError, match="No space left on device"):
        workers.run(full_disk_at, 3, job, str(tmp_path), record)
    assert len(records_so_far(tmp_path)) < 8
    workers.run(run_job, 2, job, str(tmp_path))
    result = audited(tmp_path)
    assert result.clean, result.findings
    assert result.steps == 30


def no_room_at(rank, job, url, file):
    """Rank 1's disk takes no byte of the `file`-th file that it writes; torch raises what it does over that."""
    from planner.train.checkpoints.tensor_writer import _PrivateFiles

    opened, files = _PrivateFiles.create_stream, []

    class Full:
        def __init__(self, stream):
            self._stream = stream

        def __getattr__(self, name):
            return getattr(self._stream, name)

        def write(self, _content):
            raise OSError(errno.ENOSPC, "No space left on device")

    @contextmanager
    def create_stream(self, path, mode):
        files.append(path)
        with opened(self, path, mode) as stream:
            yield Full(stream) if rank == 1 and len(files) == file else stream

    _PrivateFiles.create_stream = create_stream
    try:
        return run_job(rank, job, url)
    finally:
        _PrivateFiles.create_stream = opened


def test_a_commit_that_one_worker_has_no_room_for_is_told_by_all(workers, texts, tmp_path):
    """The error has the size of a whole commit. Its files are removed, and the run resumes from the commit before."""
    job = make_job(texts, steps=6, checkpoint={"every": 2})
    message = r"step 4 cannot be committed \(last commit: step 2\): .*: the disk is full: a commit needs .*B, and "
    with pytest.raises(DiskFull, match=message):
        workers.run(no_room_at, 3, job, str(tmp_path), 2)
    run = RunFolder(Storage(str(tmp_path)))
    assert run.storage.names("checkpoints") == run.commits() == [commit_name(2, 1)]
    workers.run(run_job, 2, job, str(tmp_path))
    result = audited(tmp_path)
    assert result.clean, result.findings
    assert result.steps == 6


def records_so_far(url):
    """Lines of the torn segment that are whole."""
    return (url / "ledger" / "000001.jsonl").read_text().splitlines()[:-1]


def no_device(rank, job, url):
    """The second worker's node has no GPU."""
    from planner.train.generation import train
    from planner.train.hooks import Hooks
    from planner.train.setup import Launch
    from planner.train.world import cpu_device

    def choose():
        if rank == 1:
            raise TrainingFailed("this worker has none")
        return cpu_device()

    return train(Launch(job=job, url=url), choose, Hooks())


def test_a_worker_without_a_device_stops_all(workers, texts, tmp_path):
    """Named by its rank, before anything is written."""
    with pytest.raises(TrainingFailed, match="worker 1: this worker has none"):
        workers.run(no_device, 3, make_job(texts), str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_fewer_steps_than_are_done_is_done(workers, texts, tmp_path):
    """A job that asks for less than the run has is finished; nothing is trained and nothing is lost."""
    workers.run(run_job, 2, make_job(texts, steps=4), str(tmp_path))
    outcome = workers.run(run_job, 3, make_job(texts, steps=2), str(tmp_path))[0]
    assert (outcome.step, outcome.finished) == (4, True)
    assert len(records(tmp_path)) == 4
    assert audited(tmp_path).clean


def stay_away(rank, seconds, given_up):
    """All agree on a limit; then the last rank does not come to the next collective, until another one has given up."""
    import torch.distributed as dist

    from planner.train.control import Tally, exchange
    from planner.train.world import World, cpu_device

    world = World.join(cpu_device)
    exchange(world, Tally(denominators=(1,)))
    world.set_timeout(seconds)
    if rank == dist.get_world_size() - 1:
        wait_for(Path(given_up).exists)  # alive, so that no closed connection ends the wait of the others
        return "away"
    try:
        exchange(world, Tally(denominators=(1,)))
    except RuntimeError as error:
        return str(error)
    else:
        return "came"
    finally:
        Path(given_up).touch()


def test_a_collective_that_one_worker_never_joins_is_given_up(workers, tmp_path):
    """On all waiting workers, after the time that was set. torch's own limit here is two minutes."""
    *waited, away = workers.run(stay_away, 3, 1.0, str(tmp_path / "given up"))
    assert away == "away"
    assert "came" not in waited
    # The first one leaves the group, which may be the error of the other.
    assert any("imed out" in message for message in waited), waited
