"""Stops in memory in unusual company: commits in flight, other drivers, changed jobs, and states of all kinds."""

import threading
from contextlib import contextmanager

import pytest
from events import EVENT_S
from kept_runs import cluster, copies_in, run_kept, run_kept_texts
from own_loops import HEAD, own_job
from test_bitwise import CONFIGURATIONS, bitwise_job, result
from test_hf_training import hf, hf_job
from worker_functions import records, run_job
from write_gates import FOREVER, Gate, gated

from planner.data import ahead_sets
from planner.data.tokenizer import ByteTokenizer
from planner.errors import ResumeRefused, TrainingFailed
from planner.provenance.audit import audit
from planner.store.commit_names import commit_of
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = pytest.mark.fsdp


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "run")


def audited(url, **options):
    found = audit(RunFolder(Storage(url)), **options)
    assert found.clean, found.findings
    assert (found.lost, found.repeated) == (0, 0)
    return found


def headers(url):
    return records(url, "generation")


def from_memory(url):
    texts = [event["message"] for event in records(url, "event")]
    return [text for text in texts if text.startswith("loaded from memory")]


def run_writing(rank, job, url, nodes, addresses, stop_at):
    """The commit of step 2 is not written before the stop, and the copy of step 3 is published only after it."""
    with gated(rank, Gate(steps=FOREVER)), _publishing(3) as published:
        return run_kept(rank, job, url, nodes, addresses, stop_at, True, None, (), 0, published)


@contextmanager
def _publishing(last):
    """Hold the publishing of copies from step `last` on until a stop has its copy. Gives a wait before each step."""
    from planner.train.copies import Copies
    from planner.train.memory_copies import MemoryCopies

    publish, begin, keep = Copies._publish, Copies._begin_publishing, MemoryCopies.keep
    stopped, works = threading.Event(), {}

    def begin_publishing(copies, held, facts):
        begin(copies, held, facts)
        works[held.step] = copies._publishing

    def slow_publish(copies, client, held, facts, moved):
        if held.step >= last:
            assert stopped.wait(EVENT_S)
        return publish(copies, client, held, facts, moved)

    def keep_beside(memory, step, cursor):
        assert memory.copies.is_publishing
        try:
            return keep(memory, step, cursor)
        finally:
            stopped.set()

    def wait(step):
        if 1 < step <= last:
            assert works[step - 1].result()

    Copies._publish, Copies._begin_publishing, MemoryCopies.keep = slow_publish, begin_publishing, keep_beside
    try:
        yield wait
    finally:
        Copies._publish, Copies._begin_publishing, MemoryCopies.keep = publish, begin, keep


def test_a_stop_during_a_commit_while_a_copy_is_published(workers, texts, tmp_path, url):
    """Both places are in use. The commit is given up, and the stop stays in memory."""
    job = bitwise_job(texts, steps=7, checkpoint={"memory": 1, "every": 2})
    with cluster("a", "b") as nodes:
        ends = workers.run(run_writing, 2, job, url, "ab", nodes.addresses, 4)
        assert [(end.step, end.is_held) for end in ends] == [(4, True)] * 2
        assert RunFolder(Storage(url)).commits() == []
        workers.run(run_kept, 3, job, url, "aba", nodes.addresses)
    workers.run(run_job, 1, job, str(tmp_path / "alone"))
    assert result(url) == result(tmp_path / "alone")
    assert [header["step"] for header in headers(url)] == [0, 4]
    assert audited(url).recomputed == 0


def test_a_changed_job_goes_on_from_memory_once_it_is_accepted(workers, texts, url):
    """Refused without the name. The next try still finds the copies."""
    job = bitwise_job(texts, steps=6, equality="balanced", checkpoint={"memory": 1})
    changed = job.model_copy(update={"batch": job.batch.model_copy(update={"global_batch": 15})})
    with cluster("a", "b") as nodes:
        workers.run(run_kept, 2, job, url, "ab", nodes.addresses, 3)
        with pytest.raises(ResumeRefused, match="--accept global_batch"):
            workers.run(run_kept, 2, changed, url, "ab", nodes.addresses)
        workers.run(run_kept, 2, changed, url, "ab", nodes.addresses, None, True, None, ("global_batch",))
    assert len(from_memory(url)) == 1
    assert headers(url)[-1]["changed"] == ["global_batch: accepted by name", "batch.global: 13 -> 15"]
    assert [header["step"] for header in headers(url)][-1] == 3
    audited(url)


def test_a_commit_of_another_driver_is_newer_than_what_is_held(workers, texts, url):
    """It took the run over between the stop and the resume, from the commit before. Its lineage goes on."""
    job = bitwise_job(texts, steps=7, checkpoint={"memory": 1, "every": 2})
    with cluster("a", "b") as nodes:
        workers.run(run_kept, 2, job, url, "ab", nodes.addresses, 5)
        (other, _) = workers.run(run_job, 2, job, url, 2)
        workers.run(run_kept, 2, job, url, "ab", nodes.addresses)
    assert from_memory(url) == []
    assert headers(url)[-1]["step"] == other.step
    assert headers(url)[-1]["parent"].endswith("2")
    audited(url)


def run_overtaken(rank, job, url, nodes, addresses):
    """Another driver commits between this generation's look at the folder and its claim."""
    from planner.store.commit_names import commit_name
    from planner.train import resume

    look = resume.newest_named
    resume.newest_named = lambda _run: commit_name(9, 9)
    try:
        return run_kept(rank, job, url, nodes, addresses)
    finally:
        resume.newest_named = look


def test_a_driver_that_overtakes_ends_the_group_on_all_workers(workers, texts, url):
    """The next one looks for what is there then."""
    job = bitwise_job(texts, steps=6, checkpoint={"memory": 1})
    with cluster("a", "b") as nodes:
        workers.run(run_kept, 2, job, url, "ab", nodes.addresses, 3)
        with pytest.raises(TrainingFailed, match=r"MemoryLost: commit 0*9-0*9 is newer than step 3 of gen"):
            workers.run(run_overtaken, 2, job, url, "ab", nodes.addresses)
        workers.run(run_kept, 2, job, url, "ab", nodes.addresses)
    assert len(from_memory(url)) == 1
    audited(url)


def test_a_damaged_commit_of_a_later_step_is_not_what_is_durable(workers, texts, tmp_path, url):
    """It was passed over, and the step in memory is before it: that step is held, and is committed soon."""
    job = bitwise_job(texts, steps=8, checkpoint={"memory": 1, "every": 2})
    workers.run(run_job, 2, job, url, 4)
    run = RunFolder(Storage(url))
    damaged = run.commits()[-1]
    assert commit_of(damaged)[0] == 4
    (tmp_path / "run" / "checkpoints" / damaged / ".metadata").write_bytes(b"torn")
    with cluster("a", "b") as nodes:
        ends = workers.run(run_kept, 2, job, url, "ab", nodes.addresses, 3)
        assert [(end.step, end.is_held) for end in ends] == [(3, True)] * 2
        workers.run(run_kept, 2, job, url, "ab", nodes.addresses)
    assert [(header["step"], header["parent_is_held"]) for header in headers(url)] == [
        (0, False),
        (2, False),
        (3, True),
    ]
    # It commits after its first step, at a step that the damaged commit had, too.
    assert commit_of(run.commits()[2])[0] == 4
    workers.run(run_job, 1, job, str(tmp_path / "alone"))
    assert result(url) == result(tmp_path / "alone")
    audited(url)


STATES = ("dropout, tied embeddings, clipping", "narrower than the workers")


@pytest.mark.parametrize("name", STATES)
def test_several_workers_per_node_and_empty_shards(workers, texts, tmp_path, url, name):
    """Five workers on three nodes, then two on one, then three: also of a model with fewer rows than workers."""
    job = bitwise_job(texts, steps=6, **CONFIGURATIONS[name])
    with cluster("a", "b", "c") as nodes:
        for placed, stop_at in (("aabbc", 2), ("bb", 4)):
            ends = workers.run(run_kept, len(placed), job, url, placed, nodes.addresses, stop_at)
            assert all(end.is_held for end in ends)
        workers.run(run_kept, 3, job, url, "cab", nodes.addresses)
    workers.run(run_job, 1, job, str(tmp_path / "alone"))
    assert result(url) == result(tmp_path / "alone")
    assert len(from_memory(url)) == 2
    assert audited(url).recomputed == 0


def test_adapters_alone_are_in_memory(workers, texts, tiny_model, tmp_path, monkeypatch, url):
    """LoRA on a frozen model: copies hold what is trained, and the rest comes from the model's files."""
    monkeypatch.setattr(ahead_sets, "tokenizer_of", lambda _model: ByteTokenizer())
    model = hf(tiny_model("llama"), lora={"rank": 2, "dropout": 0.1})
    job = hf_job(texts, model, train={"clip_norm": 0.1, "steps": 5}, batch={"equality": "bitwise"})
    with cluster("a", "b", "c") as nodes:
        workers.run(run_kept_texts, 2, job, url, "ab", nodes.addresses, 2)
        names = {piece.name for copy in copies_in(nodes.address("a")) for piece in copy.pieces}
        workers.run(run_kept_texts, 3, job, url, "abc", nodes.addresses, 4)
        workers.run(run_kept_texts, 1, job, url, "c", nodes.addresses)
    trained = {name for name in names if name.startswith("model/")}
    assert trained
    assert all("lora_" in name for name in trained)
    with cluster("a") as nodes:
        workers.run(run_kept_texts, 1, job, str(tmp_path / "alone"), "a", nodes.addresses)
    assert result(url) == result(tmp_path / "alone")
    assert len(from_memory(url)) == 2
    audited(url)


LOOP = """
def train(run):
    model, optimizer = made(run)
    for step in run.steps(model, optimizer):
        for batch in step.micro_batches():
            step.backward(errors(model, batch).sum())
"""


@pytest.mark.parametrize("equality", ["bitwise", pytest.param("balanced", marks=pytest.mark.slow)])
def test_a_loop_of_the_users_own_goes_on_from_memory(workers, tmp_path, url, equality):
    file = tmp_path / f"loop_in_memory_{equality}.py"
    file.write_text(HEAD + LOOP)
    job = own_job(file, batch={"equality": equality}, checkpoint={"every": 1000})
    with cluster("a", "b", "c") as nodes:
        workers.run(run_kept, 3, job, url, "abc", nodes.addresses, 2)
        workers.run(run_kept, 1, job, url, "b", nodes.addresses, 4)
        workers.run(run_kept, 2, job, url, "ca", nodes.addresses)
    assert len(from_memory(url)) == 2
    assert audited(url, code=str(file)).recomputed == 0
    if equality == "bitwise":
        workers.run(run_job, 1, job, str(tmp_path / "alone"))
        assert result(url) == result(tmp_path / "alone")


def test_a_held_step_is_named_by_its_children_only(workers, texts, url):
    """A step in memory that nobody used has left nothing in the run's folder."""
    job = bitwise_job(texts, steps=8, checkpoint={"memory": 1})
    run = RunFolder(Storage(url))
    with cluster("a", "b") as nodes:
        workers.run(run_kept, 2, job, url, "ab", nodes.addresses, 3)
        assert run.storage.names("held") == []
        workers.run(run_kept, 1, job, url, "a", nodes.addresses, 7)
        nodes.kill("a")
        workers.run(run_kept, 1, job, url, "b", nodes.addresses)
    (name,) = [held.removesuffix(".json") for held in run.storage.names("held")]
    assert commit_of(name) == (3, 1)
    assert headers(url)[-1]["parent_is_held"] is False
    assert headers(url)[-1]["step"] == 4
    assert audited(url).recomputed == 3
