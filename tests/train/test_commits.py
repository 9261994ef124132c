"""Commits in the background: what is held, what is durable, in which thread, and how a failure reaches all workers."""

import errno
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from events import EVENT_S
from test_checkpoint_safety import NAME, make_job, make_state, manifest_of
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from planner.errors import DiskFull, PlannerError, StaleGeneration, StoreError, TrainingFailed
from planner.store.records import digest_of
from planner.store.run_folder import RunFolder, commit_name
from planner.store.storage import Storage
from planner.train import background, commit_files
from planner.train import commits as commits_module
from planner.train.checkpoints.checkpoint import read_digests
from planner.train.checkpoints.held_copy import HeldCopy
from planner.train.checkpoints.layout import pieces_of
from planner.train.commits import Commits
from planner.train.copies import Copies, Owner
from planner.train.memory_copies import MemoryCopies
from planner.train.state import tensor_digest
from planner.train.world import World, cpu_device


class Journal:
    """What commits need of a ledger, and who called it."""

    generation, total_steps = 1, 100

    def __init__(self, run, rank=0):
        self.run_id, self.rank = run.ensure_identity().run_id, rank
        self.records, self.events, self.failure, self.head = [], [], None, "0" * 64
        self.writers = set()

    def stored_head(self):
        return "" if self.rank or self.failure else self.head

    def sync(self):
        pass

    def note(self, event):
        self.writers.add(threading.current_thread())
        self.events.append(event)

    def record(self, record):
        self.writers.add(threading.current_thread())
        self.records.append(record)

    def manifest(self, name, step, cursor, *, files, tensors, head):
        values = {"name": name, "step": step, "cursor": cursor, "tensors": tensors, "ledger_head": head}
        return manifest_of(files, run_id=self.run_id, **values)


class Gate:
    """Holds a write until the test lets it go on. `begun` says that the write has begun."""

    def __init__(self):
        self.begun, self.opened = threading.Event(), threading.Event()

    def wait(self):
        self.begun.set()
        assert self.opened.wait(EVENT_S)


@pytest.fixture(scope="module")
def world(process_group):  # noqa: ARG001  # it must be there
    return World.join(cpu_device)


@pytest.fixture
def run(tmp_path):
    return RunFolder(Storage(str(tmp_path / "run")))


@pytest.fixture
def gate(monkeypatch):
    """Every write of shards passes it."""
    gate, write = Gate(), commit_files.write_shards

    def gated(*arguments):
        gate.wait()
        return write(*arguments)

    monkeypatch.setattr(commit_files, "write_shards", gated)
    yield gate
    gate.opened.set()


def make_commits(world, run, state, *, journal=None, is_copied=True, **checkpoint):
    journal = journal or Journal(run)
    job = make_job(checkpoint=checkpoint)
    owner = Owner(run_id="r", generation=1, rank=world.rank, world_size=world.world_size)
    copies = Copies(device=world.device, owner=owner, pieces=lambda: pieces_of(state.tensors()))
    memory = MemoryCopies(world=world, state=state, journal=journal, copies=copies)
    named = {"world": world, "run": run, "job": job, "state": state, "journal": journal, "memory": memory}
    return Commits(**named, committed="none", is_copied=is_copied), journal


def train_on(state):
    """One step, which changes every tensor."""
    state.model(torch.full((1, 4), 5)).square().sum().backward()
    state.step()
    state.model.zero_grad(set_to_none=True)


def digests(state):
    return {name: tensor_digest(getattr(t, "full_tensor", lambda t=t: t)()) for name, t in state.tensors().items()}


def wait_for(work):
    assert work._ended.wait(EVENT_S)


def until_durable(commits):
    """What the loop does in the steps after a commit began."""
    wait_for(commits._flight.writing)
    assert commits.advance(int(commits.has_written), is_sealed=commits.has_sealed) is None
    wait_for(commits._flight.sealing)
    return commits.advance(int(commits.has_written), is_sealed=commits.has_sealed)


# -- one worker


def test_a_held_step_becomes_durable_as_it_was(world, run, gate):
    """Two steps are trained while it is written. Manifest and tensors are those of the held step."""
    state = make_state(world, steps=1)
    commits, journal = make_commits(world, run, state)
    journal.head, held = "a" * 64, digests(state)
    assert commits.begin(7, 35, is_last=False) is None
    assert gate.begun.wait(EVENT_S)
    for head in ("b" * 64, "c" * 64):
        train_on(state)
        journal.head = head
        assert commits.advance(int(commits.has_written), is_sealed=commits.has_sealed) is None
    assert commits.is_in_flight
    assert not (commits.has_written)
    assert not (run.commits())
    assert not (journal.records)
    assert digests(state) != held
    gate.opened.set()
    landed = until_durable(commits)
    manifest = run.manifest(commit_name(7, 1))
    assert (manifest.step, manifest.cursor, manifest.ledger_head) == (7, 35, "a" * 64)
    assert read_digests(run.storage, manifest) == held
    [record] = journal.records
    assert (record.step, record.name, record.sha256) == (7, manifest.name, digest_of(manifest))
    assert (landed.step, commits.is_in_flight, commits.failure) == (7, False, None)
    assert record.seconds == landed.paused_s
    assert record.write_s == landed.write_s


def test_a_commit_says_how_long_it_kept_training_waiting_and_when_it_was_durable(world, run, gate, monkeypatch):
    """On a clock of the test's own: the copy takes 2 s, and the write 30 s beside training."""
    now_s, take = [100.0], HeldCopy.take

    def slow(self, shards):
        now_s[0] += 2.0
        return take(self, shards)

    monkeypatch.setattr(HeldCopy, "take", slow)
    for module in (background, commits_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    commits, journal = make_commits(world, run, make_state(world, steps=1))
    commits.begin(7, 35, is_last=False)
    assert gate.begun.wait(EVENT_S)
    now_s[0] += 30.0
    gate.opened.set()
    landed = until_durable(commits)
    assert (landed.paused_s, landed.write_s) == (2.0, 32.0)
    [record] = journal.records
    assert (record.seconds, record.write_s) == (2.0, 32.0)


def test_the_manifest_follows_only_after_all_that_it_names(world, run, gate):
    """Nothing names the files while they are written, nor before the workers have told each other."""
    commits, journal = make_commits(world, run, make_state(world, steps=1))
    gate.opened.set()
    commits.begin(1, 5, is_last=False)
    wait_for(commits._flight.writing)
    assert commits.has_written
    assert not commits.has_sealed
    assert run.commits() == []
    commits.advance(1, is_sealed=False)
    assert not commits.has_written  # it was gathered: it must not be counted again
    wait_for(commits._flight.sealing)
    assert run.commits() == [NAME]
    assert journal.records == []
    commits.advance(0, is_sealed=True)
    assert [record.name for record in journal.records] == [NAME]


def test_only_the_training_thread_writes_the_ledger(world, run, monkeypatch):
    """The manifest comes from the background, the record never does: whether it lands by itself, or is waited for."""
    sealed_by, put = [], RunFolder.put_manifest
    monkeypatch.setattr(
        RunFolder, "put_manifest", lambda *args: sealed_by.append(threading.current_thread()) or put(*args)
    )
    state = make_state(world, steps=1)
    commits, journal = make_commits(world, run, state)
    commits.begin(1, 5, is_last=False)
    until_durable(commits)
    commits.begin(2, 10, is_last=False)
    assert commits.begin(3, 15, is_last=True).step == 2
    assert commits.finish().step == 3
    assert [record.step for record in journal.records] == [1, 2, 3]
    assert journal.writers == {threading.current_thread()}
    assert len(sealed_by) == 3
    assert threading.current_thread() not in sealed_by


def test_the_next_commit_waits_for_the_one_in_flight(world, run, gate, monkeypatch):
    """Its files are not begun before the manifest of the first, and its copy does not change what is written."""
    state = make_state(world, steps=1)
    commits, journal = make_commits(world, run, state)
    log, write, put = [], commit_files.write_shards, RunFolder.put_manifest
    monkeypatch.setattr(commit_files, "write_shards", lambda *args: log.append(args[1][-19:-7]) or write(*args))
    monkeypatch.setattr(RunFolder, "put_manifest", lambda *args: log.append("manifest") or put(*args))
    first = digests(state)
    commits.begin(1, 5, is_last=False)
    assert gate.begun.wait(EVENT_S)
    train_on(state)
    gather = commits._gather
    monkeypatch.setattr(commits, "_gather", lambda flight: gate.opened.set() or gather(flight))
    assert commits.begin(2, 10, is_last=False).step == 1
    second = digests(state)
    commits.finish()
    assert log == ["000000000001", "manifest", "000000000002", "manifest"]
    assert [read_digests(run.storage, run.manifest(name)) for name in run.commits()] == [first, second]
    assert [record.step for record in journal.records] == [1, 2]


@pytest.mark.parametrize("is_last", [True, False])
def test_without_room_for_a_copy_or_at_the_end_the_state_itself_is_written(world, run, is_last):
    """The commit is complete before training changes anything, and no buffer was made."""
    state = make_state(world, steps=1)
    commits, _ = make_commits(world, run, state, is_copied=is_last)
    held = digests(state)
    commits.begin(1, 5, is_last=is_last)
    if not is_last:
        assert commits.has_written
        train_on(state)
    assert commits.finish().step == 1
    assert [place._buffers for place in commits._memory.copies._places] == [{}, {}]
    assert read_digests(run.storage, run.manifest(NAME)) == held


def test_finishing_without_a_commit_is_nothing(world, run):
    """And so is advancing."""
    commits, journal = make_commits(world, run, make_state(world))
    assert (commits.finish(), commits.advance(0, is_sealed=False), commits.failure) == (None, None, None)
    assert not (commits.is_in_flight)
    assert not (commits.has_written)
    assert not (commits.has_sealed)
    assert not (commits.is_silent)
    commits.close()
    assert journal.records == []


# -- failures


def fail_writing(monkeypatch, error):
    def write(*_):
        raise error

    monkeypatch.setattr(commit_files, "write_shards", write)


def fail_sealing(monkeypatch, error):
    def put(*_):
        raise error

    monkeypatch.setattr(RunFolder, "put_manifest", put)


FULL = OSError(errno.ENOSPC, "no room, says the test")


@pytest.mark.parametrize("fail", [fail_writing, fail_sealing])
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (FULL, DiskFull, r"^step 2 cannot be committed \(last commit: step 1\): .*the disk is full"),
        (DiskFull("full"), DiskFull, r"^step 2 cannot be committed \(last commit: step 1\): full$"),
        (StoreError("the store is gone"), StoreError, "^the store is gone$"),
        (StaleGeneration("another driver"), StaleGeneration, "^another driver$"),
        (KeyError("unexpected"), TrainingFailed, rf"{commit_name(2, 1)}: cannot save: KeyError: 'unexpected'$"),
        (MemoryError(), TrainingFailed, r"cannot save: MemoryError: $"),
    ],
    ids=["full", "full in the store", "store", "stale", "unexpected", "memory"],
)
@pytest.mark.parametrize("at", ["begin", "finish"])
def test_a_failure_in_the_background_is_raised_at_the_next_step(
    world, run, monkeypatch, fail, error, kind, message, at
):
    """Named with its step and the last commit; then nothing is in flight, and the commit before is whole."""
    state = make_state(world, steps=1)
    commits, journal = make_commits(world, run, state)
    commits.begin(1, 5, is_last=False)
    until_durable(commits)
    fail(monkeypatch, error)
    commits.begin(2, 10, is_last=False)
    wait_for(commits._flight.writing)
    if fail is fail_sealing:
        commits.advance(1, is_sealed=False)
        wait_for(commits._flight.sealing)
    assert isinstance(commits.failure, kind)
    assert not (commits.has_written)
    assert not (commits.has_sealed)
    with pytest.raises(kind, match=message):
        commits.begin(3, 15, is_last=True) if at == "begin" else commits.finish()
    assert (commits.is_in_flight, run.commits()) == (False, [NAME])
    assert [record.step for record in journal.records] == [1]
    manifest = run.manifest(NAME)
    run.check_files(manifest.folder, manifest.files)
    if kind is DiskFull:  # the ledger's last lines need room
        assert run.storage.names("checkpoints") == [NAME]


def test_a_run_that_was_taken_over_commits_nothing(world, run):
    """A newer claim before the write, and one between the write and the manifest."""
    state = make_state(world, steps=1)
    commits, journal = make_commits(world, run, state)
    commits.begin(1, 5, is_last=False)
    wait_for(commits._flight.writing)
    run.claim_generation({})
    with pytest.raises(StaleGeneration, match="generation 2 has taken over"):
        commits.finish()
    commits.begin(2, 10, is_last=False)
    wait_for(commits._flight.writing)
    assert isinstance(commits.failure, StaleGeneration)
    with pytest.raises(StaleGeneration):
        commits.finish()
    assert (run.commits(), journal.records) == ([], [])


@pytest.mark.parametrize("error", [StoreError("the ledger is torn"), None], ids=["known", "unknown"])
def test_without_the_ledger_s_head_nothing_is_written(world, run, error):
    """A manifest would name a commit without a lineage. The ledger's own error is raised, if it is known."""
    commits, journal = make_commits(world, run, make_state(world, steps=1))
    journal.failure, journal.head = error, ""
    commits.begin(1, 5, is_last=True)
    with pytest.raises(StoreError, match="the ledger is torn" if error else "the ledger could not be written"):
        commits.finish()
    assert run.commits() == []
    assert run.storage.names("checkpoints") == []


# -- removing old files


@pytest.fixture
def pruned(world, run, monkeypatch):
    """Commits whose old files cannot be removed while `errors` has one, and how often that was tried."""
    state, prune = make_state(world, steps=1), RunFolder.prune
    commits, journal = make_commits(world, run, state, keep=1)
    errors, tried = [], []

    def failing(*arguments):
        tried.append(None)
        if errors:
            raise errors[0]
        prune(*arguments)

    monkeypatch.setattr(RunFolder, "prune", failing)
    return commits, journal, errors, tried


def commit_all(commits, steps):
    for step in steps:
        commits.begin(step, 5 * step, is_last=False)
        until_durable(commits)
        commits._pruning.finish()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FULL, r"OSError: \[Errno 28\] no room, says the test"),
        (StoreError("/run: cannot use it: Permission denied"), "/run: cannot use it: Permission denied"),
        (KeyError("unexpected"), "KeyError: 'unexpected'"),
    ],
    ids=["full", "store", "unexpected"],
)
def test_old_files_that_cannot_be_removed_end_no_run(run, pruned, error, reason):
    """The step is durable, and the event says so. Each commit tries again, and the same reason is noted once."""
    commits, journal, errors, tried = pruned
    errors.append(error)
    commit_all(commits, (1, 2, 3))
    commits.begin(4, 20, is_last=True)
    assert commits.failure is None
    assert commits.finish().step == 4
    assert [record.step for record in journal.records] == [1, 2, 3, 4]
    [event] = journal.events
    assert event.step == 1
    assert re.fullmatch(reason, event.reason)
    assert len(tried) == 4
    assert run.storage.names("checkpoints") == [commit_name(step, 1) for step in (1, 2, 3, 4)]
    assert journal.writers == {threading.current_thread()}


def test_old_files_are_removed_when_that_works_again(run, pruned):
    """All that were left are removed. A failure after that is noted anew."""
    commits, journal, errors, _ = pruned
    errors.append(FULL)
    commit_all(commits, (1, 2))
    errors.clear()
    commit_all(commits, (3,))
    assert run.storage.names("checkpoints") == [commit_name(3, 1)]
    errors.append(FULL)
    commit_all(commits, (4,))
    assert [event.step for event in journal.events] == [1, 4]


def test_a_failed_removal_is_noted_at_the_next_step(pruned):
    """Not only when the next commit begins, which may be half an hour later."""
    commits, journal, errors, _ = pruned
    errors.append(FULL)
    commits.begin(1, 5, is_last=False)
    until_durable(commits)
    wait_for(commits._pruning._work)
    commits.advance(0, is_sealed=False)
    assert len(journal.events) == 1


@pytest.mark.parametrize(("verify", "is_found"), [("on_load", False), ("read_back", True)])
def test_an_altered_file_is_found_by_reading_back(world, run, monkeypatch, verify, is_found):
    """A store that loses a bit: without `read_back`, the next load finds it."""
    write = commit_files.write_shards

    def losing(storage, folder, *rest):
        written = write(storage, folder, *rest)
        content = bytearray(storage.read(f"{folder}/{written.files[0].name}"))
        content[len(content) // 2] ^= 1
        storage.write(f"{folder}/{written.files[0].name}", bytes(content))
        return written

    monkeypatch.setattr(commit_files, "write_shards", losing)
    commits, _ = make_commits(world, run, make_state(world, steps=1), verify=verify)
    commits.begin(1, 5, is_last=False)
    if is_found:
        with pytest.raises(StoreError, match=f"^checkpoints/{NAME}/__0_0.distcp: altered"):
            commits.finish()
        assert run.commits() == []
        return
    commits.finish()
    manifest = run.manifest(NAME)
    with pytest.raises(StoreError, match="altered"):
        run.check_files(manifest.folder, manifest.files)


def test_metadata_is_read_back_too(world, run, monkeypatch):
    """It is written after the shards, by rank 0 alone."""
    write = commit_files.write_metadata

    def losing(storage, folder, *rest):
        files = write(storage, folder, *rest)
        storage.write(f"{folder}/.metadata", storage.read(f"{folder}/.metadata") + b"x")
        return files

    monkeypatch.setattr(commit_files, "write_metadata", losing)
    commits, _ = make_commits(world, run, make_state(world, steps=1), verify="read_back")
    commits.begin(1, 5, is_last=False)
    with pytest.raises(StoreError, match=r"\.metadata: torn"):
        commits.finish()
    assert run.commits() == []


def test_closing_abandons_a_commit_that_is_written(world, run, monkeypatch):
    """It ends at its next piece. There is no manifest, and no file that is half written stays."""
    pieces, go = threading.Event(), threading.Event()
    write = commit_files.write_shards

    def slow(storage, folder, plan, shards, on_piece):
        def piece():
            pieces.set()
            assert go.wait(EVENT_S)
            on_piece()

        return write(storage, folder, plan, shards, piece)

    monkeypatch.setattr(commit_files, "write_shards", slow)
    commits, journal = make_commits(world, run, make_state(world, steps=1))
    commits.begin(1, 5, is_last=False)
    work = commits._flight.writing
    assert pieces.wait(EVENT_S)
    abandon = work.abandon
    monkeypatch.setattr(work, "abandon", lambda wait_s: abandon(0.0) or go.set() or abandon(EVENT_S + wait_s))
    commits.close()
    assert not work.is_done
    assert not commits.is_in_flight
    assert run.storage.names(f"checkpoints/{NAME}") == []
    assert (run.commits(), journal.records) == ([], [])


# -- several workers: threads that meet where processes would


class Meeting:
    """Gathers a value of each thread."""

    def __init__(self, size):
        self._barrier, self._values = threading.Barrier(size, timeout=EVENT_S), [None] * size

    def gather(self, rank, value):
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


class ThreadWorld:
    """The part of `World` that commits use."""

    device = torch.device("cpu")

    def __init__(self, rank, size, meeting):
        self.rank, self.world_size, self._meeting = rank, size, meeting

    def gather(self, value):
        return self._meeting.gather(self.rank, value)

    def gather_on_first(self, value):
        values = self.gather(value)
        return values if self.rank == 0 else []

    def agree(self, work):
        result = error = None
        try:
            result = work()
        except PlannerError as raised:
            error = raised
        errors = [(rank, each) for rank, each in enumerate(self.gather(error)) if each is not None]
        if errors:
            raise type(errors[0][1])(f"worker {errors[0][0]}: {errors[0][1]}")
        return result

    def from_first(self, make):
        return self.gather(self.agree(make if self.rank == 0 else lambda: None))[0]

    def scatter_from_first(self, make):
        return self.gather(self.agree(make if self.rank == 0 else list))[0][self.rank]


class RankState:
    """One tensor per worker."""

    def __init__(self, rank):
        self.tensor = torch.full((3, 5), float(rank))
        self.name = f"model/of_{rank}"

    def tensors(self):
        return {self.name: self.tensor}

    local_shards = tensors


def until_it_fails(world, commits):
    while True:
        one_step(world, commits)


def on_threads(size, work, run):
    """`work(world, commits, journal, state)` on each thread; the results in the order of ranks."""
    run.ensure_identity()
    meeting = Meeting(size)

    def worker(rank):
        world, state = ThreadWorld(rank, size, meeting), RankState(rank)
        commits, journal = make_commits(world, run, state, journal=Journal(run, rank))
        return work(world, commits, journal, state)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(worker, range(size)))


def one_step(world, commits):
    """A control message, and what follows from it."""
    told = world.gather((commits.has_written, commits.has_sealed, commits.failure is not None))
    written, sealed, failed = (sum(each) for each in zip(*told, strict=True))
    if failed:
        commits.finish()
    return written, commits.advance(written, is_sealed=sealed > 0)


def rank_of(shards):
    return int(next(iter(shards))[-1])


def test_a_commit_is_durable_when_the_slowest_worker_has_written(run, monkeypatch):
    """Training goes on over several steps meanwhile. All workers see it land at the same step, rank 0 records it."""
    gate, write = Gate(), commit_files.write_shards

    def gated(storage, folder, plan, shards, on_piece):
        if rank_of(shards) == 2:
            gate.wait()
        return write(storage, folder, plan, shards, on_piece)

    monkeypatch.setattr(commit_files, "write_shards", gated)

    def work(world, commits, journal, state):
        commits.begin(4, 20, is_last=False)
        if world.rank < 2:
            wait_for(commits._flight.writing)
        for _ in range(3):
            written, landed = one_step(world, commits)
            assert (written, landed, run.commits()) == (2, None, [])
            state.tensor += 100
        assert world.gather(None)
        gate.opened.set()
        steps = 0
        while (landed := one_step(world, commits)[1]) is None:
            steps += 1
        return steps, landed.step, [record.step for record in journal.records]

    answers = on_threads(3, work, run)
    assert len({steps for steps, _, _ in answers}) == 1
    assert [(step, records) for _, step, records in answers] == [(4, [4]), (4, []), (4, [])]
    manifest = run.manifest(commit_name(4, 1))
    assert [file.name for file in manifest.files] == [".metadata", *(f"__{rank}_0.distcp" for rank in range(3))]
    run.check_files(manifest.folder, manifest.files)
    assert read_digests(run.storage, manifest) == {
        f"model/of_{rank}": tensor_digest(torch.full((3, 5), float(rank))) for rank in range(3)
    }


@pytest.mark.parametrize("error", [FULL, StoreError("no store"), ValueError("odd")], ids=["full", "store", "odd"])
def test_one_worker_s_failure_reaches_all(run, monkeypatch, error):
    """The same error on every worker, with the worker's number, and no manifest."""
    write = commit_files.write_shards

    def failing(storage, folder, plan, shards, on_piece):
        if rank_of(shards) == 1:
            raise error
        return write(storage, folder, plan, shards, on_piece)

    monkeypatch.setattr(commit_files, "write_shards", failing)

    def work(world, commits, _journal, _state):
        commits.begin(4, 20, is_last=False)
        with pytest.raises(PlannerError) as raised:
            until_it_fails(world, commits)
        assert not commits.is_in_flight
        return type(raised.value), str(raised.value)

    answers = on_threads(3, work, run)
    assert len(set(answers)) == 1
    assert answers[0][1].startswith("worker 1: ")
    assert run.commits() == []
    if error is FULL:
        assert answers[0][0] is DiskFull
        assert run.storage.names("checkpoints") == []


@pytest.mark.parametrize("place", ["copy", "plan"])
@pytest.mark.parametrize("error", [MemoryError("much"), RuntimeError("can't allocate memory"), KeyError("odd")])
def test_one_worker_that_cannot_begin_a_commit_does_not_leave_the_others_alone(run, monkeypatch, place, error):
    """Its memory has no room for the copy, or its part cannot be planned: all raise that, and nothing is named."""
    owner, name = (HeldCopy, "take") if place == "copy" else (DefaultSavePlanner, "create_local_plan")
    method = getattr(owner, name)

    def failing(self, *arguments):
        shards = arguments[0] if arguments else self.state_dict
        if rank_of(shards) == 1:
            raise error
        return method(self, *arguments)

    monkeypatch.setattr(owner, name, failing)

    def work(world, commits, _journal, _state):
        if place == "copy":
            commits.begin(4, 20, is_last=False)
        with pytest.raises(TrainingFailed) as raised:
            until_it_fails(world, commits) if place == "copy" else commits.begin(4, 20, is_last=False)
        assert not commits.is_in_flight
        return str(raised.value)

    [told] = set(on_threads(3, work, run))
    assert told.startswith("worker 1: ")
    assert f"{type(error).__name__}: {error}" in told
    assert run.commits() == []
