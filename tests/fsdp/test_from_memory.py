"""Resizes from memory in real FSDP processes: the same bits through any sizes, and through lost memory."""

import mortal_workers
import pytest
from kept_runs import cluster, run_kept
from test_bitwise import bitwise_job, result
from worker_functions import records, run_job

from planner.provenance.audit import audit
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = pytest.mark.fsdp


@pytest.fixture
def run(tmp_path):
    return RunFolder(Storage(str(tmp_path / "run")))


@pytest.fixture
def undisturbed(workers, tmp_path):
    """The result of a job on one worker, without a stop."""

    def of(job):
        workers.run(run_job, 1, job, str(tmp_path / "undisturbed"))
        return result(tmp_path / "undisturbed")

    return of


def events(url):
    return [record["message"] for record in records(url, "event")]


def from_memory(url):
    return [text for text in events(url) if text.startswith("loaded from memory")]


def test_stops_stay_in_memory_at_any_size(workers, texts, tmp_path, run, undisturbed):
    """3 -> 1 -> 4 -> 2 workers: no commit in between, the same bits, a clean audit and nothing done again."""
    job = bitwise_job(texts, steps=8)
    url = run.storage.url
    with cluster("a", "b", "c", "d") as nodes:
        for size, stop_at in ((3, 2), (1, 4), (4, 6)):
            ends = workers.run(run_kept, size, job, url, "abcd", nodes.addresses, stop_at)
            assert [(end.step, end.is_held) for end in ends] == [(stop_at, True)] * size
        [end, _] = workers.run(run_kept, 2, job, url, "ab", nodes.addresses)
    assert end.finished
    assert not end.is_held
    assert result(tmp_path / "run") == undisturbed(job)
    found = audit(run)
    assert found.clean, found.findings
    assert found.recomputed == 0
    assert len(from_memory(url)) == 3


def dies(job, url, nodes, placed, size, kill_at):
    with pytest.raises(mortal_workers.WorkersKilled):
        mortal_workers.run(run_kept, size, job, url, placed, nodes.addresses, None, True, kill_at)


def resumed_steps(url):
    return [record["step"] for record in records(url, "generation")]


def checked(run, tmp_path, expected):
    """The run has the undisturbed result. Returns its audit."""
    assert result(tmp_path / "run") == expected
    found = audit(run)
    assert found.clean, found.findings
    assert (found.lost, found.repeated) == (0, 0)
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_a_node_that_dies_costs_at_most_two_steps(workers, texts, tmp_path, run, undisturbed, size):
    """Nothing was durable. The last worker dies with its node's memory: the next node has a copy of it."""
    job = bitwise_job(texts, steps=9, checkpoint={"memory": 1})
    url, names = run.storage.url, "abc"[:size]
    with cluster(*names) as nodes:
        dies(job, url, nodes, names, size, kill_at=5)
        nodes.kill(names[-1])
        ends = workers.run(run_kept, size - 1, job, url, names, nodes.addresses)
    assert ends[0].finished
    assert resumed_steps(url)[1] in {3, 4}
    assert checked(run, tmp_path, undisturbed(job)).recomputed <= 2


def test_two_nodes_that_die_at_once(workers, texts, tmp_path, run, undisturbed):
    """Of four in a ring, those that are no neighbours: all shards are left."""
    job = bitwise_job(texts, steps=9, checkpoint={"memory": 1})
    with cluster(*"abcd") as nodes:
        dies(job, run.storage.url, nodes, "abcd", 4, kill_at=5)
        nodes.kill("a", "c")
        workers.run(run_kept, 2, job, run.storage.url, "bd", nodes.addresses)
    assert resumed_steps(run.storage.url)[1] in {3, 4}
    checked(run, tmp_path, undisturbed(job))


def test_both_copies_of_a_shard_lost(workers, texts, tmp_path, run, undisturbed):
    """Neighbours in the ring die: the run goes on from the durable commit, and the audit counts what is done again."""
    job = bitwise_job(texts, steps=9, checkpoint={"memory": 1, "every": 2})
    with cluster(*"abc") as nodes:
        dies(job, run.storage.url, nodes, "abc", 3, kill_at=5)
        nodes.kill("b", "c")
        workers.run(run_kept, 2, job, run.storage.url, "aa", nodes.addresses)
    assert from_memory(run.storage.url) == []
    assert resumed_steps(run.storage.url)[1] in {2, 4}
    assert checked(run, tmp_path, undisturbed(job)).recomputed >= 1


def test_all_memory_lost_before_a_commit(workers, texts, tmp_path, run, undisturbed):
    """The run begins again, as without keepers."""
    job = bitwise_job(texts, steps=6, checkpoint={"memory": 1})
    with cluster("a", "b") as nodes:
        dies(job, run.storage.url, nodes, "ab", 2, kill_at=4)
        nodes.kill("a", "b")
        nodes.add("c")
        workers.run(run_kept, 1, job, run.storage.url, "c", nodes.addresses)
    assert resumed_steps(run.storage.url) == [0, 0]
    checked(run, tmp_path, undisturbed(job))
