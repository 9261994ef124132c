"""Training with keepers that fail, refuse or are not wanted: it goes on, says so, and stops durably."""

import mortal_workers
import pytest
from kept_runs import cluster, copies_in, damage, run_kept
from test_bitwise import bitwise_job, result
from worker_functions import records, run_job

from planner.provenance.audit import audit
from planner.store.commit_names import commit_of
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = pytest.mark.fsdp


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "run")


@pytest.fixture
def check(workers, tmp_path, url):
    """The run has the bits of an undisturbed one, and a clean audit, which is returned."""

    def of(job):
        workers.run(run_job, 1, job, str(tmp_path / "undisturbed"))
        assert result(url) == result(tmp_path / "undisturbed")
        found = audit(RunFolder(Storage(url)))
        assert found.clean, found.findings
        assert (found.lost, found.repeated) == (0, 0)
        return found

    return of


def notes(url, text):
    return [event["message"] for event in records(url, "event") if text in event["message"]]


def from_memory(url):
    return notes(url, "loaded from memory")


def begun_at(url):
    return [header["step"] for header in records(url, "generation")]


def killed(job, url, nodes, placed, kill_at):
    arguments = (job, url, placed, nodes.addresses, None, True, kill_at)
    with pytest.raises(mortal_workers.WorkersKilled):
        mortal_workers.run(run_kept, len(placed), *arguments)


def newest(nodes, name):
    """The newest copy of rank 0 in a node's memory."""
    return max((copy for copy in copies_in(nodes.address(name)) if copy.key.rank == 0), key=lambda copy: copy.step)


def test_a_damaged_copy_is_replaced_by_the_replica(workers, texts, url, check):
    """One byte on the worker's own node. The same step is read from the next node."""
    job = bitwise_job(texts, steps=8, checkpoint={"memory": 1})
    with cluster("a", "b") as nodes:
        killed(job, url, nodes, "ab", 4)
        own, replica = newest(nodes, "a"), newest(nodes, "b")
        assert (own.step, own.key) == (replica.step, replica.key)
        damage(nodes.address("a"), own.key)
        workers.run(run_kept, 2, job, url, "ab", nodes.addresses)
    assert begun_at(url) == [0, own.step]
    assert len(from_memory(url)) == 1
    check(job)


def test_copies_that_are_all_damaged_give_way_to_the_commit(workers, texts, url, check):
    """Own copies and replicas, of all steps."""
    job = bitwise_job(texts, steps=8, checkpoint={"memory": 1, "every": 2})
    with cluster("a", "b") as nodes:
        killed(job, url, nodes, "ab", 5)
        for name in "ab":
            for copy in copies_in(nodes.address(name)):
                if copy.key.rank == 0:
                    damage(nodes.address(name), copy.key)
        workers.run(run_kept, 2, job, url, "ab", nodes.addresses)
    assert begun_at(url)[1] in {2, 4}
    assert from_memory(url) == []
    check(job)


def test_a_keeper_that_dies_is_noted_and_the_stop_is_durable(workers, texts, url, check):
    """Before step 3, on the node of rank 0. Rank 1 loses its replicas. Training and commits go on."""
    job = bitwise_job(texts, steps=8, checkpoint={"memory": 1, "every": 2})
    with cluster("a", "b") as nodes:
        pid = nodes.keepers["a"].pid
        ends = workers.run(run_kept, 2, job, url, "ab", nodes.addresses, 5, True, None, (), pid)
        assert [(end.step, end.is_held) for end in ends] == [(5, False)] * 2
        assert len(notes(url, "no copies in memory for now")) == 1
        assert [commit_of(name)[0] for name in RunFolder(Storage(url)).commits()] == [2, 4, 5]
        nodes.kill("a")
        workers.run(run_kept, 1, job, url, "b", nodes.addresses)
    assert begun_at(url) == [0, 5]
    assert check(job).recomputed == 0


@pytest.mark.parametrize("lacking", ["ab", "b"])
def test_a_keeper_without_room_fails_nothing(workers, texts, url, check, lacking):
    """Of both nodes, or of one: its worker has no copies, and the other one no replicas."""
    job = bitwise_job(texts, steps=6, checkpoint={"memory": 1})
    with cluster(*(name for name in "ab" if name not in lacking)) as nodes:
        nodes.add(*lacking, bound_bytes=1000)
        ends = workers.run(run_kept, 2, job, url, "ab", nodes.addresses, 4)
        assert [(end.step, end.is_held) for end in ends] == [(4, False)] * 2
        workers.run(run_kept, 2, job, url, "ab", nodes.addresses)
        assert all(copies_in(nodes.address(name)) == [] for name in lacking)
    refused = notes(url, "of 1000 bytes left")
    assert any(text.startswith("no copies in memory: ") for text in refused) == ("a" in lacking)
    if lacking == "b":
        assert any(text.startswith("no copies on node b for now") for text in refused)
    assert begun_at(url) == [0, 4]
    check(job)


def test_memory_that_is_off_uses_no_keeper(workers, texts, url, check):
    job = bitwise_job(texts, steps=6, checkpoint={"memory": "off"})
    with cluster("a", "b") as nodes:
        ends = workers.run(run_kept, 2, job, url, "ab", nodes.addresses, 3)
        assert [end.is_held for end in ends] == [False, False]
        assert [copies_in(address) for address in nodes.addresses] == [[], []]
        workers.run(run_kept, 1, job, url, "a", nodes.addresses)
    assert begun_at(url) == [0, 3]
    check(job)


def test_a_stop_that_must_be_durable_commits(workers, texts, url, check):
    job = bitwise_job(texts, steps=6, checkpoint={"memory": 1})
    with cluster("a", "b") as nodes:
        ends = workers.run(run_kept, 2, job, url, "ab", nodes.addresses, 3, False)
        assert [end.is_held for end in ends] == [False, False]
        nodes.kill("a", "b")
        workers.run(run_kept, 1, job, url, "a", nodes.addresses)
    assert begun_at(url) == [0, 3]
    check(job)
