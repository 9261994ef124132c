"""Whole generations in real FSDP processes: equal over world sizes, over resizes, over crashes."""

import os
import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from events import EVENT_S
from worker_functions import TWO_BLOCKS, make_job, newest_commit, records, run_job, run_job_in_own_folder

from planner.errors import DataError, NewerFormat, ResumeRefused, StoreError, TrainingFailed
from planner.provenance.audit import audit
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.pace import FIRST_COMMIT_S

pytestmark = pytest.mark.fsdp


def audited(url):
    return audit(RunFolder(Storage(str(url))))


def whole_job(texts):
    return make_job(texts, steps=20, model=TWO_BLOCKS, eval={"samples": 3, "every": 7})


@pytest.fixture(scope="module")
def alone(workers, texts, tmp_path_factory):
    """20 undisturbed steps at W=1: what every other history is held against."""
    url = str(tmp_path_factory.mktemp("alone"))
    workers.run(run_job, 1, whole_job(texts), url)
    return records(url), records(url, "eval")


@pytest.mark.parametrize("world_size", [2, 5])
def test_every_world_size_trains_alike(workers, texts, tmp_path, alone, world_size):
    """The same checksums per step; losses, and held-out losses of 3 samples on up to 5 workers, equal to 1e-6."""
    job = whole_job(texts)
    workers.run(run_job, world_size, job, str(tmp_path))
    steps, evals = alone
    measured = records(tmp_path)
    assert [s["checksum"] for s in measured] == [s["checksum"] for s in steps]
    assert [s["tokens"] for s in measured] == [s["tokens"] for s in steps]
    assert [s["loss"] for s in measured] == pytest.approx([s["loss"] for s in steps], rel=1e-6)
    assert [e["step"] for e in records(tmp_path, "eval")] == [0, 7, 14, 20]
    assert [e["loss"] for e in records(tmp_path, "eval")] == pytest.approx([e["loss"] for e in evals], rel=1e-6)


def test_resizes_change_nothing(workers, texts, tmp_path, alone):
    """Stopped at W = 4, 2, 5, 1 and 3, mid-epoch, the run goes on to the losses of the undisturbed one."""
    job = whole_job(texts)
    for world_size, stop_at in [(4, 3), (2, 5), (5, 4), (1, 2)]:
        outcome = workers.run(run_job, world_size, job, str(tmp_path), stop_at)
        assert not outcome[0].finished
    outcomes = workers.run(run_job, 3, job, str(tmp_path))
    assert all(outcome.finished for outcome in outcomes)
    steps, _ = alone
    measured = records(tmp_path)
    assert [s["step"] for s in measured] == list(range(20))
    assert [s["checksum"] for s in measured] == [s["checksum"] for s in steps]
    assert [s["loss"] for s in measured] == pytest.approx([s["loss"] for s in steps], rel=2e-6)
    result = audited(tmp_path)
    assert result.clean, result.findings
    assert (result.steps, result.lost, result.repeated, result.recomputed) == (20, 0, 0, 0)
    assert [phase.world_size for phase in result.phases] == [4, 2, 5, 1, 3]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            {"precision": "bf16", "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}},
            id="bf16, sgd",
        ),
        pytest.param(
            {"optimizer": {"kind": "rmsprop", "lr": 1e-3}, "clip_norm": None, "activation_checkpointing": True},
            id="rmsprop, no clipping, activation checkpointing",
        ),
        pytest.param({"schedule": {"kind": "cosine", "warmup": 2}, "clip_norm": 0.1}, id="cosine, clipped"),
    ],
)
def test_every_option_resumes_at_another_size(workers, texts, tmp_path, settings):
    """Optimizer state, schedule and precision survive 2 -> 3 workers as if nothing had happened."""
    job = make_job(texts, steps=6, train=settings)
    workers.run(run_job, 2, job, str(tmp_path / "whole"))
    workers.run(run_job, 2, job, str(tmp_path / "cut"), 3)
    workers.run(run_job, 3, job, str(tmp_path / "cut"))
    whole, cut = records(tmp_path / "whole"), records(tmp_path / "cut")
    rel = 2e-3 if settings.get("precision") == "bf16" else 1e-5
    assert [s["loss"] for s in cut] == pytest.approx([s["loss"] for s in whole], rel=rel)
    assert [s["lr"] for s in cut] == [s["lr"] for s in whole]
    assert [s["checksum"] for s in cut] == [s["checksum"] for s in whole]


def test_lengths_in_any_unit_are_followed_and_written_down_once(workers, texts, tmp_path):
    """Evaluations, commits, the warmup and the end are where the conversions say; a resize says nothing of them."""
    job = make_job(
        texts,
        train={"steps": None, "examples": 100, "schedule": {"kind": "constant", "warmup": "26 examples"}},
        eval={"samples": 3, "every": "40 examples rounded"},
        checkpoint={"every": "25%"},
    )
    workers.run(run_job, 2, job, str(tmp_path), 3)
    workers.run(run_job, 1, job, str(tmp_path))
    assert [e["step"] for e in records(tmp_path, "eval")] == [0, 3, 6, 8]
    assert [c["step"] for c in records(tmp_path, "commit")] == [2, 3, 4, 6, 8]
    assert [s["lr"] for s in records(tmp_path)] == pytest.approx([5e-4] + [1e-3] * 7)
    assert [e["message"] for e in records(tmp_path, "event")] == [
        "train 100 examples = 8 steps (104 examples)",
        "warmup 26 examples = 2 steps (26 examples)",
        "eval every 40 examples rounded = 3 steps (39 examples)",
        "commit every 25% = 2 steps (26 examples)",
    ]


def test_a_crash_goes_back_to_the_last_commit(workers, texts, tmp_path):
    """Steps after it are done again and counted once."""
    job = make_job(texts, steps=8, checkpoint={"every": 3})
    with pytest.raises(TrainingFailed, match="planted crash"):
        workers.run(crash_at, 3, job, str(tmp_path), 5)
    workers.run(run_job, 2, job, str(tmp_path))
    result = audited(tmp_path)
    assert result.clean, result.findings
    assert (result.steps, result.recomputed, result.uncommitted) == (8, 2, 0)
    assert [(p.first_step, p.end_step, p.recomputed_before) for p in result.phases] == [(0, 3, 0), (3, 8, 2)]


def crash_at(rank, job, url, step, does=lambda: None):
    """Every rank fails in the forward pass of `step`, as a lost node makes them. Before that, each step calls `does`.

    Each step waits for what is being written, so a commit is durable two steps after its own, however busy the machine.
    """
    import threading

    from planner.train import loop

    accumulate, calls = loop.accumulate, []

    def crash(*arguments):
        calls.append(None)
        if len(calls) > step:
            raise RuntimeError("planted crash")
        does()
        for thread in threading.enumerate():
            if thread.name in {"planner-commit", "planner-past"}:
                thread.join(EVENT_S)
                assert not thread.is_alive()
        return accumulate(*arguments)

    loop.accumulate = crash
    try:
        return run_job(rank, job, url)
    finally:
        loop.accumulate = accumulate


def test_rank_0_says_when_to_commit(workers, texts, tmp_path):
    """Others follow it, though they would never commit; the loss is seen by the next generation, and told."""
    job = make_job(texts, steps=26, checkpoint={"every": "auto"})
    with pytest.raises(TrainingFailed, match="planted crash"):
        workers.run(by_a_clock, 3, job, str(tmp_path), 22)
    [first] = [commit["step"] for commit in records(tmp_path, "commit")]
    assert first == FIRST_COMMIT_S  # a step takes a second. The next commit is due after more than a minute
    workers.run(by_a_clock, 2, job, str(tmp_path), 26)
    result = audited(tmp_path)
    assert result.clean, result.findings
    assert (result.steps, result.lost, result.repeated) == (26, 0, 0)
    assert (result.recomputed, result.uncommitted) == (22 - first, 0)
    assert [commit["step"] for commit in records(tmp_path, "commit")] == [first, 26]
    before, after = [event["message"] for event in records(tmp_path, "event")]
    assert before.startswith("commits only at the end, in ")
    assert "(0 in " in before
    assert "(1 in " in after


def by_a_clock(rank, job, url, step):
    """On a clock of the test's own: a step takes a second, a copy of the state two. All fail at `step`.

    Rank 0 first commits after ten seconds, the others never would.
    """
    from planner.train import background, commits, lifecycle, loop, memory_copies, pace, step_records
    from planner.train.checkpoints.held_copy import HeldCopy

    now_s, take = [0.0], HeldCopy.take
    clock = SimpleNamespace(monotonic=lambda: now_s[0])

    def passes(seconds):
        now_s[0] += seconds

    def copied(self, shards):
        passes(2.0)
        return take(self, shards)

    with ExitStack() as stack:
        for module in (background, commits, loop, memory_copies, step_records):
            stack.enter_context(mock.patch.object(module, "time", clock))
        timed = partial(pace.MeasuredPace, clock=clock.monotonic)
        stack.enter_context(mock.patch.object(lifecycle, "MeasuredPace", timed))
        stack.enter_context(mock.patch.object(HeldCopy, "take", copied))
        if rank:
            stack.enter_context(mock.patch.object(pace, "FIRST_COMMIT_S", float("inf")))
        return crash_at(rank, job, url, step, lambda: passes(1.0))


@pytest.mark.parametrize("harm", ["torn", "altered", "gone", "manifest altered"])
def test_a_damaged_checkpoint_is_passed_over(workers, texts, tmp_path, harm):
    """The newest whole one is used instead, and the ledger says why."""
    job = make_job(texts, steps=6, checkpoint={"every": 2, "keep": 3})
    workers.run(run_job, 2, job, str(tmp_path), 4)
    newest = newest_commit(tmp_path)
    file = newest / "__1_0.distcp"
    if harm == "torn":
        file.write_bytes(file.read_bytes()[:-7])
    elif harm == "altered":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif harm == "gone":
        file.unlink()
    else:
        manifest = tmp_path / "manifests" / f"{newest.name}.json"
        manifest.write_text(manifest.read_text().replace('"cursor": 52', '"cursor": 39'))
    workers.run(run_job, 3, job, str(tmp_path))
    second = records(tmp_path, "generation")[1]
    assert second["step"] == 2
    assert newest.name in second["changed"][0]
    assert {"torn": "torn", "altered": "altered", "gone": "is missing", "manifest altered": "altered"}[harm] in second[
        "changed"
    ][0]
    assert records(tmp_path)[-1]["step"] == 5


def test_no_whole_checkpoint_is_an_error_and_not_a_fresh_start(workers, texts, tmp_path):
    """A run that has commits never silently begins at step 0."""
    job = make_job(texts, steps=4, checkpoint={"every": 2})
    workers.run(run_job, 1, job, str(tmp_path), 2)
    (newest_commit(tmp_path) / ".metadata").unlink()
    with pytest.raises(StoreError, match=r"none of 1 commits is whole \(commit .* was passed over: .*\)\. Restore"):
        workers.run(run_job, 2, job, str(tmp_path))


@pytest.fixture(scope="module")
def half_done(workers, texts, tmp_path_factory):
    """Four of six steps, with two commits."""
    url = tmp_path_factory.mktemp("half")
    workers.run(run_job, 1, half_job(texts), str(url), 4)
    return url


def half_job(texts, **sections):
    return make_job(texts, steps=6, checkpoint={"every": 2, "keep": 3}, **sections)


@pytest.fixture
def half_copy(half_done, tmp_path):
    """A copy to harm."""
    return shutil.copytree(half_done, tmp_path / "run")


def test_lost_manifests_are_no_fresh_start(workers, texts, half_copy):
    """The ledger records commits: the run refuses, and touches nothing."""
    shutil.rmtree(half_copy / "manifests")
    before = sorted(half_copy.rglob("*"))
    with pytest.raises(StoreError, match=r"records 2 commits.*Restore manifests/ or choose another checkpoint\.path"):
        workers.run(run_job, 1, half_job(texts), str(half_copy))
    assert sorted(half_copy.rglob("*")) == before


def test_a_lost_manifest_is_told(workers, texts, half_copy):
    """The run goes on from the commit before; the ledger and the audit say so, and the files stay."""
    name = "000000000004-000001"
    (half_copy / "manifests" / f"{name}.json").unlink()
    workers.run(run_job, 1, half_job(texts), str(half_copy))
    second = records(half_copy, "generation")[1]
    assert (second["step"], second["changed"][0][:34]) == (2, f"commit {name} is lost")
    assert (half_copy / "checkpoints" / name).exists()
    assert any(name in finding for finding in audited(half_copy).findings)


def test_a_newer_format_is_not_passed_over(workers, texts, half_copy):
    """Its work would be thrown away."""
    (half_copy / "manifests" / "000000000004-000001.json").write_text('{"sha256": "?", "value": {"format": 2}}')
    with pytest.raises(NewerFormat, match="format 2, this one reads 1"):
        workers.run(run_job, 2, half_job(texts), str(half_copy))


def test_lost_claims_give_no_number_twice(workers, texts, half_copy):
    """The second generation is the second, and the run is clean."""
    shutil.rmtree(half_copy / "generations")
    workers.run(run_job, 1, half_job(texts), str(half_copy))
    assert [header["generation"] for header in records(half_copy, "generation")] == [1, 2]
    assert audited(half_copy).clean


@pytest.mark.parametrize("harm", ["gone", "torn"])
def test_a_lost_job_is_told(workers, texts, half_copy, harm):
    """The same job is written anew; what another was made with is not known, and that is said."""
    (file,) = (half_copy / "jobs").iterdir()
    content = file.read_bytes()
    if harm == "torn":
        file.write_bytes(content[:-9])
        workers.run(run_job, 1, half_job(texts), str(half_copy))
        assert file.read_bytes() == content
        return
    file.unlink()
    workers.run(run_job, 1, half_job(texts, batch={"max_micro": 5}), str(half_copy))
    changed = records(half_copy, "generation")[1]["changed"]
    assert changed == [f"the job of the last commit is unknown: jobs/{file.name} is gone"]


def test_a_commit_made_between_choice_and_claim_is_resumed_from(workers, texts, half_copy):
    """Another driver's last commit is not rolled back, and the claimed number is kept."""
    workers.run(claims_late, 2, half_job(texts), str(half_copy))
    second = records(half_copy, "generation")[1]
    assert (second["generation"], second["step"], second["parent"]) == (2, 4, "000000000004-000001")
    assert audited(half_copy).clean


def claims_late(rank, job, url):
    """The newest manifest appears when the number is claimed."""
    hidden, shown = Path(url, "hidden.json"), Path(url, "manifests/000000000004-000001.json")
    claim_generation = RunFolder.claim_generation

    def claim_generation_late(self, facts):
        hidden.rename(shown)
        return claim_generation(self, facts)

    if rank == 0:
        shown.rename(hidden)
        RunFolder.claim_generation = claim_generation_late
    try:
        return run_job(rank, job, url)
    finally:
        RunFolder.claim_generation = claim_generation


def test_a_foreign_checkpoint_is_refused(workers, texts, tmp_path):
    """A manifest copied from another run is not this run's commit."""
    job = make_job(texts, steps=4, checkpoint={"every": 2})
    for name in ("one", "two"):
        workers.run(run_job, 1, job, str(tmp_path / name), 2)
    manifest = "manifests/000000000002-000001.json"
    (tmp_path / "one" / manifest).write_bytes((tmp_path / "two" / manifest).read_bytes())
    with pytest.raises(StoreError, match="belongs to another run"):
        workers.run(run_job, 1, job, str(tmp_path / "one"))


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("global_batch", {"global_batch": 12}),
        ("seed", {"train": {"seed": 1}}),
        ("model", {"model": {"layers": 3}}),
        ("data", {"eval": {"samples": 5}}),
        ("optimizer", {"train": {"optimizer": {"kind": "sgd", "lr": 0.1}}}),
        ("recipe", {"train": {"optimizer": {"kind": "adamw", "lr": 0.1}}}),
        ("recipe", {"train": {"precision": "bf16"}}),
        ("recipe", {"train": {"schedule": {"kind": "linear"}}}),
    ],
)
def test_a_changed_identity_is_refused(workers, texts, tmp_path, field, change):
    """The error names the field and the way out; nothing of the run is touched."""
    workers.run(run_job, 1, make_job(texts, steps=2), str(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ResumeRefused, match=rf"the run was made with another .*{field} .*--accept {field}"):
        workers.run(run_job, 2, make_job(texts, **{"steps": 4, **change}), str(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before


def test_an_accepted_change_is_logged_and_audited(workers, texts, tmp_path):
    """Another global batch, accepted by name, goes on from the same cursor; the audit shows both."""
    workers.run(run_job, 2, make_job(texts, steps=2), str(tmp_path))
    workers.run(run_job, 2, make_job(texts, steps=4, global_batch=10), str(tmp_path), None, ["global_batch"])
    assert records(tmp_path, "generation")[1]["changed"][:2] == [
        "global_batch: accepted by name",
        "batch.global: 13 -> 10",
    ]
    assert [s["cursor"] for s in records(tmp_path)] == [13, 26, 36, 46]
    result = audited(tmp_path)
    assert result.clean, result.findings
    assert result.global_batches == (13, 10)


def test_other_changes_are_logged(workers, texts, tmp_path):
    """More steps and another micro-batch are no other run, but the ledger says what changed."""
    workers.run(run_job, 1, make_job(texts, steps=2), str(tmp_path))
    workers.run(run_job, 1, make_job(texts, steps=3, max_micro=5), str(tmp_path))
    assert records(tmp_path, "generation")[1]["changed"] == ["batch.max_micro: 3 -> 5", "train.steps: 2 -> 3"]


def test_storage_that_is_not_shared_is_refused(workers, texts, tmp_path):
    """Each worker with a folder of its own would lose every shard but the first."""
    with pytest.raises(StoreError, match=r"does not see what .* wrote there\. Set checkpoint.path to storage"):
        workers.run(run_job_in_own_folder, 3, make_job(texts), str(tmp_path))
    assert not list(tmp_path.rglob("manifest*"))


def test_a_run_that_was_taken_over_commits_nothing_more(workers, texts, tmp_path):
    """A newer generation's claim refuses the older one's next commit, on every worker."""
    job = make_job(texts, steps=6, checkpoint={"every": 3})
    with pytest.raises(StoreError, match="generation 2 has taken over this run from generation 1"):
        workers.run(taken_over_after, 2, job, str(tmp_path), 2)
    assert not (tmp_path / "manifests").exists()


def taken_over_after(rank, job, url, step):
    """Another driver claims the run while this one trains."""
    from planner.train import loop

    accumulate, calls = loop.accumulate, []

    def claim(*arguments):
        calls.append(None)
        if rank == 0 and len(calls) == step:
            RunFolder(Storage(url)).claim_generation({})
        return accumulate(*arguments)

    loop.accumulate = claim
    try:
        return run_job(rank, job, url)
    finally:
        loop.accumulate = accumulate


def test_data_that_vanishes_stops_all_workers_with_a_commit(workers, texts, tmp_path):
    """One worker's read error travels in the control message: no hang, no lost step."""
    file = tmp_path / "text.txt"
    file.write_text(Path(texts).read_text())
    job = make_job(str(file), steps=50, data={"kind": "text"})
    with pytest.raises(DataError, match=r"text\.txt has changed while the run was reading it"):
        workers.run(spoil_data_at, 3, job, str(tmp_path / "run"), str(file), 3)
    done = len(records(tmp_path / "run"))
    assert 3 <= done < 50
    assert records(tmp_path / "run", "commit")[-1]["step"] == done


def spoil_data_at(rank, job, url, file, step):
    """The file is cut off while the run reads it."""
    from planner.train import loop

    accumulate, calls = loop.accumulate, []

    def spoil(*arguments):
        calls.append(None)
        if rank == 0 and len(calls) == step:
            os.truncate(file, 1)
        return accumulate(*arguments)

    loop.accumulate = spoil
    try:
        return run_job(rank, job, url)
    finally:
        loop.accumulate = accumulate


def test_a_gradient_that_is_not_finite_stops_the_run(workers, texts, tmp_path):
    """All workers stop at the same step, the weights of the last commit stand, and the step is named."""
    job = make_job(texts, steps=8, train={"optimizer": {"kind": "sgd", "lr": 1e3}, "clip_norm": None})
    with pytest.raises(TrainingFailed, match=r"step \d+: the (gradient's norm|loss) is"):
        workers.run(run_job, 2, job, str(tmp_path))


def test_workers_whose_data_differ_are_refused(workers, texts, tmp_path):
    """Two nodes with different files must not train together."""
    other = tmp_path / "rows.jsonl"
    other.write_text(Path(texts).read_text().replace("abc", "abd"))
    with pytest.raises(TrainingFailed, match="the data differs between workers"):
        workers.run(run_with_data_of, 2, make_job(texts), str(tmp_path / "run"), [texts, str(other)])


def run_with_data_of(rank, job, url, paths):
    """Each rank reads a file of its own."""
    data = job.data.model_copy(update={"path": paths[rank]})
    return run_job(rank, job.model_copy(update={"data": data}), url)


def test_epochs_run_on_across_their_end(workers, texts, tmp_path):
    """200 rows, 7 held out, G = 13: two epochs are ceil(386 / 13) steps, and no row of them is left out."""
    job = make_job(texts, global_batch=13, max_micro=13, eval={"samples": 7})
    job = job.model_copy(update={"train": job.train.model_copy(update={"steps": None, "epochs": 2})})
    workers.run(run_job, 4, job, str(tmp_path))
    assert len(records(tmp_path)) == 30
    assert records(tmp_path)[-1]["cursor"] == 390
    assert audited(tmp_path).clean


def test_a_crash_loop_is_stopped(workers, texts, tmp_path):
    """Thirty groups of one launch that die before their first commit are enough."""
    run = RunFolder(Storage(str(tmp_path)))
    for _ in range(30):
        run.claim_generation({"launch": "a", "parent": "", "durable": "", "host": "here"})
    with pytest.raises(TrainingFailed, match="30 worker groups in a row died before their first commit"):
        workers.run(run_launch, 1, make_job(texts, steps=1), str(tmp_path), "a")
    workers.run(run_launch, 1, make_job(texts, steps=1), str(tmp_path), "b")
    assert records(tmp_path)[-1]["step"] == 0


def test_a_launch_whose_copies_move_on_but_commits_nothing_is_stopped(workers, texts, tmp_path):
    """Each group begins a step later, from memory. A hundred of them without a commit are enough."""
    run = RunFolder(Storage(str(tmp_path)))
    for number in range(100):
        run.claim_generation({"launch": "a", "parent": f"{number + 1:012d}-000001", "durable": "", "host": "here"})
    with pytest.raises(TrainingFailed, match="100 worker groups in a row ended, and nothing became durable"):
        workers.run(run_launch, 1, make_job(texts, steps=1), str(tmp_path), "a")


def run_launch(_rank, job, url, launch_id):
    """A generation of a named launch."""

    from planner.train.generation import train
    from planner.train.hooks import Hooks
    from planner.train.setup import Launch
    from planner.train.world import cpu_device

    return train(Launch(job=job, url=url, launch_id=launch_id), cpu_device, Hooks())


@pytest.mark.fsdp
def test_more_steps_on_a_resume_say_what_becomes_of_the_rate(workers, texts, tmp_path):
    """In the ledger, where the run goes on."""
    train = {"schedule": {"kind": "cosine", "final_fraction": 0.1}}
    for steps in (3, 9):
        workers.run(run_job, 1, make_job(texts, steps=steps, train=train), str(tmp_path))
    before, after = records(tmp_path, "generation")
    assert before["changed"] == []
    rates = [record["lr"] for record in records(tmp_path)]
    change = f"so the learning rate of step 3 changes from {rates[2]:.3g} to {rates[3]:.3g}"
    assert after["changed"] == [
        "train.steps: 3 -> 9",
        f"train.schedule: cosine now ends at step 9 instead of 3, {change}",
    ]
