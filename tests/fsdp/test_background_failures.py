"""What fails while a commit is in flight: one error for all workers, a whole last commit, and a run that resumes."""

import errno
import re
import subprocess
import threading
from pathlib import Path

import mortal_workers
import pytest
from events import EVENT_S, wait_for
from own_loops import HEAD, own_job
from test_bitwise import poisoned, result
from worker_functions import make_job, records, run_job
from write_gates import FOREVER, Gate, gated, run_gated, told_gated

from planner.errors import DiskFull, StaleGeneration, TrainingFailed
from planner.provenance.audit import audit
from planner.store.run_folder import RunFolder, commit_name, commit_of
from planner.store.storage import Storage

pytestmark = pytest.mark.fsdp


def short_job(texts, steps=9, **sections):
    return make_job(texts, steps=steps, checkpoint={"every": 3}, **sections)


def finished_cleanly(workers, job, url, code="", world_size=2):
    """Run to the end and audit."""
    assert all(outcome.finished for outcome in workers.run(run_job, world_size, job, str(url)))
    found = audit(RunFolder(Storage(str(url))), **({"code": code} if code else {}))
    assert found.clean, found.findings
    assert (found.steps, found.lost, found.repeated) == (job.train.steps, 0, 0)
    return found


def lines_of(url):
    """The kinds and steps of the first segment's records, in their order. The last line may be torn."""
    pattern = r'"kind":"(step|commit)".*?"step":(\d+)'
    found = [re.search(pattern, line) for line in (url / "ledger/000001.jsonl").read_text().splitlines()]
    return [(match[1], int(match[2])) for match in found if match]


FAILURES = {
    errno.ENOSPC: (
        "DiskFull",
        r"step 6 cannot be committed \(last commit: step 3\): .*: the disk is full: a commit nee",
    ),
    errno.EIO: ("TrainingFailed", r"checkpoints/000000000006-000001: cannot save: .*Input/output error"),
    errno.EACCES: ("TrainingFailed", r"checkpoints/000000000006-000001: cannot save: .*Permission denied"),
}


@pytest.fixture(scope="module")
def alone(workers, texts, tmp_path_factory):
    """One worker, undisturbed."""
    url = tmp_path_factory.mktemp("alone")
    workers.run(run_job, 1, bitwise_job(texts), str(url))
    return result(url)


def bitwise_job(texts):
    return short_job(texts, max_micro=2, batch={"equality": "bitwise"})


@pytest.mark.parametrize("number", FAILURES, ids=lambda number: errno.errorcode[number])
def test_a_failure_on_one_worker_is_raised_by_all(workers, texts, tmp_path, alone, number):
    """Rank 1 fails when the step after the held one is under way. The next step is the last one that is trained.

    The run resumes from the commit before, which was written when training had gone on, and ends with the same bits.
    """
    job, gate = bitwise_job(texts), Gate(rank=1, steps=1, error=number, error_from=6)
    answers = workers.run(told_gated, 3, job, str(tmp_path), gate)
    (told,) = {(kind, text) for kind, text, _ in answers}
    kind, text = FAILURES[number]
    assert told[0] == kind
    assert re.search(text, told[1]), told[1]
    run = RunFolder(Storage(str(tmp_path)))
    assert run.commits() == [commit_name(3, 1)]
    last = max(step for kind, step in lines_of(tmp_path) if kind == "step")
    assert 6 <= last <= 8
    if number == errno.ENOSPC:
        assert run.storage.names("checkpoints") == run.commits()
    found = finished_cleanly(workers, job, tmp_path)
    assert [phase.first_step for phase in found.phases] == [0, 3]
    assert result(tmp_path) == alone


def test_a_disk_without_room_for_a_second_commit(workers, texts, small_disk):
    """A real one: the first commit stays, and the same job ends when there is room."""
    url = small_disk / "run"
    job = short_job(texts, model={"layers": 1, "width": 48})
    with pytest.raises(DiskFull, match=r"step 6 cannot be committed \(last commit: step 3\): .* Make room there"):
        workers.run(run_gated, 3, job, str(url), Gate())
    assert RunFolder(Storage(str(url))).commits() == [commit_name(3, 1)]
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    finished_cleanly(workers, job, url)


def test_training_goes_on_beside_a_frozen_store_and_waits_at_the_next_commit(workers, texts, tmp_path):
    """Rank 1 writes nothing until all wait for it. Then its commit lands, and the run goes on."""
    answers = workers.run(run_gated, 3, short_job(texts), str(tmp_path), Gate(rank=1, steps=FOREVER))
    assert [waited for _, waited in answers] == [0, 2, 0]  # the last commit is written at once
    order = lines_of(tmp_path)
    for held in (3, 6):
        # Every step before the next commit is on record before this one is durable.
        assert order.index(("commit", held)) == order.index(("step", held + 2)) + 1
    commits = records(tmp_path, "commit")
    assert [commit["step"] for commit in commits] == [3, 6, 9]
    assert audit(RunFolder(Storage(str(tmp_path)))).clean


def no_room_for_the_copy(rank, job, url):
    """Rank 1 cannot copy its shards from the second commit on. The others are in their next step by then."""
    from planner.train.checkpoints.held_copy import HeldCopy

    take, taken = HeldCopy.take, []

    def fail(self, shards):
        taken.append(None)
        if rank == 1 and len(taken) > 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return take(self, shards)

    HeldCopy.take = fail
    try:
        return run_job(rank, job, url)
    finally:
        HeldCopy.take = take


def no_plan(rank, job, url):
    """Rank 1 cannot plan its part of the files."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    create = DefaultSavePlanner.create_local_plan

    def fail(self):
        if rank == 1:
            raise ValueError("a tensor of no kind that DCP knows")
        return create(self)

    DefaultSavePlanner.create_local_plan = fail
    try:
        return run_job(rank, job, url)
    finally:
        DefaultSavePlanner.create_local_plan = create


@pytest.mark.parametrize(
    ("failing", "said", "durable"),
    [
        (no_room_for_the_copy, "cannot save: RuntimeError: DefaultCPUAllocator: can't allocate memory", [3]),
        (no_plan, "the files of a commit cannot be planned: ValueError: a tensor of no kind that DCP knows", []),
    ],
    ids=["copy", "plan"],
)
def test_a_worker_that_cannot_begin_a_commit_tells_the_others(workers, texts, tmp_path, failing, said, durable):
    """All raise its error at the same step. Nobody waits in a collective until it times out."""
    answers = workers.run(told_gated, 3, short_job(texts), str(tmp_path), Gate(), failing)
    [(kind, text)] = {(kind, text) for kind, text, _ in answers}
    assert kind == "TrainingFailed"
    assert text.startswith("worker 1: ")
    assert text.endswith(said)
    assert RunFolder(Storage(str(tmp_path))).commits() == [commit_name(step, 1) for step in durable]
    finished_cleanly(workers, short_job(texts), tmp_path)


def silent_at_once(rank, job, url, gate):
    """Rank 1 gives its storage no time: after one silent commit, the usual limit counts again."""
    from planner.train import commit_in_flight
    from planner.train.commits import Commits

    finish, limit_s = Commits.finish, commit_in_flight.SILENT_S

    def heard(self):
        if self.is_in_flight:
            commit_in_flight.SILENT_S = limit_s
        return finish(self)

    commit_in_flight.SILENT_S, Commits.finish = (-1.0 if rank == 1 else limit_s), heard
    try:
        return run_gated(rank, job, url, gate)
    finally:
        commit_in_flight.SILENT_S, Commits.finish = limit_s, finish


def test_a_store_that_is_silent_for_long_makes_all_wait(workers, texts, tmp_path):
    """Before the next commit is due, so that the controller sees a hang. There is no further commit for it."""
    workers.run(silent_at_once, 2, short_job(texts, steps=12), str(tmp_path), Gate(rank=1, steps=FOREVER))
    order = lines_of(tmp_path)
    assert order.index(("commit", 3)) < order.index(("step", 4))  # the next commit would wait for it after step 5
    assert [commit["step"] for commit in records(tmp_path, "commit")] == [3, 6, 9, 12]
    assert audit(RunFolder(Storage(str(tmp_path)))).clean


@pytest.mark.parametrize("place", ["shards", "manifest"])
def test_a_second_driver_takes_over_while_a_commit_is_in_flight(workers, texts, tmp_path, place):
    """The first one's manifest is refused. The second one has trained from the commit before, and nothing is lost."""
    job, url = short_job(texts), tmp_path / "run"
    workers.run(run_job, 2, job, str(url), 3)
    go, said = tmp_path / "go", []

    def first():
        try:
            mortal_workers.run(outlived, 2, job, str(url), place, str(go))
        except StaleGeneration as error:
            said.append(str(error))

    driver = threading.Thread(target=first)
    driver.start()
    wait_for(lambda: (tmp_path / "go.wanted").exists() or not driver.is_alive())
    assert driver.is_alive()
    finished_cleanly(workers, job, url, world_size=3)
    go.touch()
    driver.join(EVENT_S)
    assert not driver.is_alive()
    assert said
    assert "generation 3 has taken over this run from generation 2" in said[0]
    run = RunFolder(Storage(str(url)))
    assert commit_name(6, 2) not in run.commits()
    assert [commit_of(name)[1] for name in run.commits()] == [1, 3, 3]
    found = audit(run)
    assert found.clean, found.findings


def outlived(rank, job, url, place, go):
    """Rank 0's first write goes on when the file `go` is there. It says that it waits by `go.wanted`."""
    with gated(rank, Gate(rank=0, place=place, steps=FOREVER)) as keeper:
        pass_by = keeper.pass_by

        def wait_for_file():
            Path(f"{go}.wanted").touch()
            wait_for(Path(go).exists)
            keeper.opened.set()
            pass_by()

        keeper.pass_by = wait_for_file
        return run_job(rank, job, url)


@pytest.mark.parametrize("equality", ["bitwise", "balanced"])
def test_a_gradient_that_is_not_finite_waits_for_the_commit(workers, texts, tmp_path, equality):
    """When the run has stopped, the step that was held is durable and on record."""
    job = make_job(texts, max_micro=2, checkpoint={"every": 2}, batch={"equality": equality})
    with pytest.raises(TrainingFailed, match="step 2: the gradient's norm is"):
        workers.run(poisoned_gated, 3, job, str(tmp_path))
    assert RunFolder(Storage(str(tmp_path))).commits() == [commit_name(2, 1)]
    assert [commit["step"] for commit in records(tmp_path, "commit")] == [2]
    finished_cleanly(workers, job, tmp_path)


def poisoned_gated(rank, job, url):
    with gated(rank, Gate(steps=FOREVER)):
        return poisoned(rank, job, url)


def data_error_at(rank, job, url):
    """Rank 1 cannot read its samples of step 4."""
    from planner.errors import DataError
    from planner.train.batches import Loader

    load = Loader.load

    def fail(self, cursor):
        if rank == 1 and cursor == 4 * 13:
            raise DataError("row 77: not readable. Repair it")
        return load(self, cursor)

    Loader.load = fail
    try:
        return run_job(rank, job, url)
    finally:
        Loader.load = load


def test_a_data_error_of_one_worker_waits_for_the_commit(workers, texts, tmp_path):
    """The step in flight becomes durable, and so does the step at which the run stops."""
    answers = workers.run(told_gated, 3, short_job(texts), str(tmp_path), Gate(steps=FOREVER), data_error_at)
    assert {(kind, text) for kind, text, _ in answers} == {("DataError", "worker 1: row 77: not readable. Repair it")}
    assert [commit["step"] for commit in records(tmp_path, "commit")] == [3, 4]
    finished_cleanly(workers, short_job(texts), tmp_path)


def test_a_loop_of_the_users_own_that_raises_abandons_the_commit(workers, tmp_path):
    """Nothing hangs, the step that was held is not committed, and the repaired loop resumes before it."""
    code = """
def train(run):
    model, optimizer = made(run)
    for step in run.steps(model, optimizer):
        if step.number == 4 and BROKEN:
            raise ValueError("a mistake of the user's own")
        for batch in step.micro_batches():
            step.backward(errors(model, batch).sum())
"""
    jobs = []
    for name in ("broken", "repaired"):
        file = tmp_path / f"{name}.py"
        file.write_text(f"BROKEN = {name == 'broken'}\n{HEAD}{code}")
        jobs.append(own_job(file, checkpoint={"every": 3}))
    with pytest.raises(TrainingFailed, match="ValueError: a mistake of the user's own"):
        workers.run(run_gated, 3, jobs[0], str(tmp_path / "run"), Gate(steps=FOREVER))
    assert RunFolder(Storage(str(tmp_path / "run"))).commits() == []
    finished_cleanly(workers, jobs[1], tmp_path / "run", code=jobs[1].data.path)
