"""Stops that abandon the step in flight: nothing of it counts, and nothing is lost."""

from functools import partial

import pytest
from cut_runs import at_once, run_cut
from kept_runs import cluster
from own_loops import HEAD, own_job
from test_bitwise import CONFIGURATIONS, bitwise_job, result
from test_held_stops import audited, from_memory, headers
from test_objectives import sample_job
from worker_functions import make_job, records, run_job
from write_gates import FOREVER, Gate, gated

from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = pytest.mark.fsdp


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "run")


def finely(job):
    """The job in micro-batches of one sample: 13, 7 and 5 rounds at 1, 2 and 3 workers."""
    return job.model_copy(update={"batch": job.batch.model_copy(update={"max_micro": 1})})


def cut(workers, size, job, url, cut_at, run=run_cut, **options):
    """Run a generation that abandons the step after `cut_at`. Gives its rounds, and whether the last step is held."""
    found = workers.run(partial(run, **options), size, job, url, cut_at)
    ends = [end for end, _ in found]
    assert {(end.step, end.finished) for end in ends} == {(cut_at, False)}
    ((rounds, is_held),) = {(end.abandoned_rounds, end.is_held) for end in ends}
    return rounds, is_held


def finish(workers, size, job, url, run=run_cut, **options):
    """Run a generation to the end of the job."""
    found = workers.run(partial(run, **options), size, job, url)
    assert {(end.finished, end.abandoned_rounds) for end, _ in found} == {(True, 0)}


@pytest.mark.parametrize("where", ["sharded", "local"])
@pytest.mark.parametrize(
    "name",
    ["dropout, tied embeddings, clipping", *(pytest.param(name, marks=pytest.mark.slow) for name in CONFIGURATIONS)],
)
def test_cuts_and_resizes_change_no_bit(workers, texts, tmp_path, url, name, where):
    """Hash, losses and norms are those of one worker that was never disturbed. No step is on record twice.

    Also in the first step of the run and of a group, and when the questions run beside the rounds.
    """
    job = finely(bitwise_job(texts, steps=7, **CONFIGURATIONS[name]))
    places = [(2, 0, 1, 1, 1), (1, 2, 9, 1, 9), (3, 2, 2, 1, 2), (2, 3, 1, 2, 4), (1, 6, 2, 3, 9)]
    for size, cut_at, after, gap, rounds in places:
        found = cut(workers, size, job, url, cut_at, after=after, gap=gap, where=where)
        assert found == (rounds, False)
    finish(workers, 2, job, url, where=where)
    workers.run(run_job, 1, job, str(tmp_path / "alone"))
    assert result(url) == result(tmp_path / "alone")
    assert [step["step"] for step in records(url)] == list(range(7))
    assert audited(url).recomputed == 0


@pytest.mark.parametrize("where", ["sharded", "local"])
def test_float_sums_go_on_as_after_a_stop_between_steps(workers, texts, tmp_path, url, where):
    """At the same sizes and steps, without a bit of difference."""
    job = finely(bitwise_job(texts, steps=5, equality="balanced"))
    plain = str(tmp_path / "plain")
    assert cut(workers, 2, job, url, 2, after=3, where=where) == (3, False)
    finish(workers, 3, job, url, where=where)
    stopped = workers.run(partial(run_cut, stop_at=2, where=where), 2, job, plain)
    assert {(end.step, end.abandoned_rounds) for end, _ in stopped} == {(2, 0)}
    finish(workers, 3, job, plain, where=where)
    assert result(url)[1] == result(plain)[1]
    assert (end_of(url), audited(url).recomputed) == (end_of(plain), 0)


def end_of(url):
    """The digests of the files of the last commit."""
    run = RunFolder(Storage(url))
    return {(file.name, file.sha256) for file in run.manifest(run.commits()[-1]).files if file.name != ".metadata"}


def test_a_step_that_is_repeated_is_cut(workers, texts, tmp_path, url):
    """The first step of a run is done twice. The exponents that its first attempt chose are dropped."""
    job = finely(bitwise_job(texts, steps=3))
    assert cut(workers, 2, job, url, 0, after=8) == (7 + 2, False)
    finish(workers, 2, job, url)
    workers.run(run_job, 1, job, str(tmp_path / "alone"))
    assert result(url) == result(tmp_path / "alone")
    audited(url)


def test_a_step_of_one_round_is_finished(workers, texts, url):
    """Nobody asks. The stop comes after it, as without a cut."""
    job = make_job(texts, steps=3, global_batch=8, max_micro=4)
    found = workers.run(partial(run_cut, stop_at=1), 2, job, url, 0)
    assert [(end.step, end.abandoned_rounds, asked) for end, asked in found] == [(1, 0, [])] * 2


def test_short_steps_are_asked_in_the_first_one_only(workers, texts, url):
    """The first step of a group is not measured yet."""
    job = finely(bitwise_job(texts, steps=4, equality="balanced"))
    found = workers.run(partial(run_cut, gap=0), 2, job, url)
    for end, asked in found:
        assert end.finished
        assert set(asked) == {0}
        assert len(asked) < 7


def test_workers_without_a_controller_never_ask(workers, texts, url):
    """As `attached` loops."""
    job = finely(bitwise_job(texts, steps=2, equality="balanced"))
    assert workers.run(count_questions, 2, job, url) == [0, 0]


def count_questions(rank, job, url):
    from planner.train.cuts import Cuts

    begin, found = Cuts._begin, []
    Cuts._begin = lambda cuts, number: (found.append(number), begin(cuts, number))
    try:
        run_job(rank, job, url)
    finally:
        Cuts._begin = begin
    return len(found)


# -- what is held, and what is in flight


@pytest.mark.parametrize("memory", ["off", 1, 1000])
def test_cuts_from_memory_change_no_bit(workers, texts, tmp_path, url, memory):
    """The last step is in memory already (1), or goes there (1000), or is durable. Also in a group's first step."""
    job = finely(bitwise_job(texts, steps=6, checkpoint={"memory": memory}))
    is_held = memory != "off"
    with cluster("a", "b", "c") as nodes:
        for placed, cut_at in (("ab", 2), ("a", 2), ("bc", 4)):
            kept = {"nodes": placed, "addresses": nodes.addresses}
            rounds, held = cut(workers, len(placed), job, url, cut_at, after=2, **kept)
            assert (rounds, held) == (2, is_held)
        finish(workers, 3, job, url, nodes="cab", addresses=nodes.addresses)
    workers.run(run_job, 1, job, str(tmp_path / "alone"))
    assert result(url) == result(tmp_path / "alone")
    assert [step["step"] for step in records(url)] == list(range(6))
    assert audited(url).recomputed == 0
    assert len(from_memory(url)) == (3 if is_held else 0)


@pytest.mark.parametrize("is_held", [False, True], ids=["durable", "in memory"])
def test_a_cut_while_the_commit_of_the_last_step_is_in_flight(workers, texts, tmp_path, url, is_held):
    """In memory, the copy that the commit is written from is the last step. Else the commit is waited for."""
    job = finely(bitwise_job(texts, steps=5, checkpoint={"every": 2}))
    with cluster("a", "b") as nodes:
        kept = {"nodes": "ab", "addresses": nodes.addresses, "may_hold": is_held}
        assert cut(workers, 2, job, url, 2, run_gated, after=3, **kept) == (3, is_held)
        assert len(RunFolder(Storage(url)).commits()) == int(not is_held)
        finish(workers, 1, job, url, nodes="a", addresses=nodes.addresses)
    workers.run(run_job, 1, job, str(tmp_path / "alone"))
    assert result(url) == result(tmp_path / "alone")
    assert [header["step"] for header in headers(url)] == [0, 2]
    assert headers(url)[1]["parent_is_held"] is is_held
    assert audited(url).recomputed == 0


def run_gated(rank, job, url, cut_at, **options):
    """`run_cut`, whose commits are not written before the stop. Copies are published."""
    with gated(rank, Gate(steps=FOREVER)):
        return run_cut(rank, job, url, cut_at, before_step=at_once, **options)


# -- other kinds of jobs


LOOP = """
def train(run):
    model, optimizer = made(run)
    for step in run.steps(model, optimizer):
        losses = []
        for batch in step.micro_batches():
            loss = errors(model, batch).sum()
            step.backward(loss)
            losses.append(float(loss))
        assert losses
        assert step.is_cut == (len(losses) < len(step.batches))
"""


@pytest.mark.parametrize("equality", ["bitwise", "balanced"])
def test_a_loop_of_the_users_own_is_cut(workers, tmp_path, url, equality):
    """Its micro-batches end early, then its steps."""
    file = tmp_path / f"loop_cut_{equality}.py"
    file.write_text(HEAD + LOOP)
    job = finely(own_job(file, batch={"equality": equality}, checkpoint={"every": 1000}))
    assert cut(workers, 2, job, url, 0, after=2) == (2, False)
    assert cut(workers, 1, job, url, 3, after=5) == (5, False)
    finish(workers, 3, job, url)
    assert audited(url, code=str(file)).recomputed == 0
    if equality == "bitwise":
        workers.run(run_job, 1, job, str(tmp_path / "alone"))
        assert result(url) == result(tmp_path / "alone")


@pytest.mark.parametrize("name", ["kto", "dpo, cached"])
def test_an_objective_with_passes_of_its_own_is_cut(workers, tmp_path, url, name):
    """KTO computes numbers of the global batch before its rounds. A cached reference is read beside them."""
    job = finely(sample_job(tmp_path, name, steps=4, equality="bitwise"))
    assert cut(workers, 2, job, url, 0, after=1) == (1, False)
    assert cut(workers, 1, job, url, 2, after=4) == (4, False)
    finish(workers, 2, job, url)
    workers.run(run_job, 1, job, str(tmp_path / "alone"))
    assert result(url) == result(tmp_path / "alone")
    assert audited(url).recomputed == 0


# -- what is on record


def test_the_ledger_has_all_of_the_steps_before_and_nothing_of_the_cut_one(workers, texts, url):
    """Its measurements cover all steps and no rounds of the cut one, and the reason for the stop is there."""
    job = finely(bitwise_job(texts, steps=4, equality="balanced"))
    assert cut(workers, 2, job, url, 2, after=4) == (4, False)
    finish(workers, 2, job, url)
    measured = records(url, "measurement")
    assert sum(each["num_steps"] for each in measured) == 4
    tokens = sum(each["input_tokens"] for each in measured)
    assert any("why the step is cut" in event["message"] for event in records(url, "event"))
    plain = url + "-plain"
    workers.run(run_job, 2, job, plain)
    assert tokens == sum(each["input_tokens"] for each in records(plain, "measurement"))
    assert audited(url).recomputed == 0
