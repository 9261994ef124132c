"""Micro-batches by length in real FSDP processes: the samples, losses and bits of a run, and what the audit finds."""

import json
import random

import pytest
from forging import header, rechained
from sample_sets import write_rows
from test_bitwise import result
from test_hf_training import hf, hf_job, run_hf
from test_training import crash_at
from verifiers import run_script
from worker_functions import make_job, records, run_job

from planner.errors import TrainingFailed, UserError
from planner.plan import BatchSizes, make_plan
from planner.provenance.audit import audit
from planner.rehearsal.on_processes import rehearse, train_observed
from planner.rehearsal.stages import stages
from planner.runner.verify_job import compare
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.setup import Launch

pytestmark = pytest.mark.fsdp

OBJECTIVES = {
    "sft": ({"kind": "sft"}, "chat"),
    "dpo": ({"kind": "dpo", "beta": 0.5}, "pairs"),
    "dpo, cached": ({"kind": "dpo", "beta": 0.5, "reference": "cached"}, "pairs"),
    "kto": ({"kind": "kto", "beta": 0.5}, "feedback"),
}


def job_of(folder, name, *, equality="balanced", max_tokens: int | None = 70, steps=6, **sections):
    objective, data = OBJECTIVES[name]
    return make_job(
        "",
        steps=steps,
        global_batch=11,
        **{
            "objective": objective,
            "eval": {"samples": 5, "every": 2},
            "train": {"optimizer": {"kind": "adamw", "lr": 1e-2}},
            **sections,
            "data": {"kind": data, "path": write_rows(folder / f"{data}.jsonl", data)},
            "batch": {"equality": equality, "max_micro": 4, **({"max_tokens": max_tokens} if max_tokens else {})},
        },
    )


def audited(url):
    found = audit(RunFolder(Storage(str(url))))
    assert found.clean, found.findings
    return found


@pytest.mark.parametrize("name", OBJECTIVES)
def test_samples_and_losses_are_those_of_padded_batches(workers, tmp_path, name):
    """Every step has the same samples, and the same loss within rounding; also the held-out ones."""
    workers.run(run_job, 2, job_of(tmp_path, name, max_tokens=None), str(tmp_path / "padded"))
    workers.run(run_job, 3, job_of(tmp_path, name), str(tmp_path / "packed"))
    padded, packed = (records(tmp_path / each) for each in ("padded", "packed"))
    same = ("step", "cursor", "samples", "tokens", "checksum")
    assert [[s[key] for key in same] for s in packed] == [[s[key] for key in same] for s in padded]
    assert [s["loss"] for s in packed] == pytest.approx([s["loss"] for s in padded], rel=2e-5)
    evaluated = [[e["loss"] for e in records(tmp_path / each, "eval")] for each in ("padded", "packed")]
    assert evaluated[1] == pytest.approx(evaluated[0], rel=2e-5)
    assert all(s["placement"] for s in packed)
    assert not any("placement" in s for s in padded)
    (measured,) = (sum(m["padded_tokens"] - m["input_tokens"] for m in records(tmp_path / "packed", "measurement")),)
    ghosts = measured  # a ghost is a token without loss
    assert 0 <= ghosts <= 3 * 11 * len(packed)
    audited(tmp_path / "packed")


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_one_hash_for_every_world_size_and_through_kills(workers, tmp_path, name):
    """In bitwise runs on 1 to 6 workers, and through stops and crashes."""
    job = job_of(tmp_path, name, equality="bitwise", checkpoint={"every": 2})
    for world_size in range(1, 7):
        workers.run(run_job, world_size, job, str(tmp_path / str(world_size)))
    alone = result(tmp_path / "1")
    assert len(alone[0]) > 20
    assert all(result(tmp_path / str(world_size)) == alone for world_size in range(2, 7))
    dice, url = random.Random(name), str(tmp_path / "history")
    for _ in range(3):
        with pytest.raises(TrainingFailed, match="planted crash"):
            workers.run(crash_at, dice.randint(1, 6), job, url, 2)
        workers.run(run_job, dice.randint(1, 6), job, url, 1)
    workers.run(run_job, 4, job, url)
    assert result(url) == alone
    audited(url)
    code, said = run_script(url)
    assert code == 0, said
    assert "verify_run: clean. 6 steps" in said


def test_verify_passes(workers, tmp_path):
    """2 workers throughout, and 3, 2, 1: forward passes, too, whose number follows from lengths."""
    job = job_of(tmp_path, "sft")
    folders = tmp_path / "fixed", tmp_path / "history"
    for folder, sizes in zip(folders, ([2], [3, 2, 1]), strict=True):
        rehearse(workers, Launch(job=job, url=str(folder)), stages(sizes, 6), train_observed)
        audited(folder)
    checks = compare(job, *folders, [3, 2, 1])
    assert {check.what: check.detail for check in checks if not check.passed} == {}


def test_an_audit_finds_another_split(workers, tmp_path):
    """A step whose samples went to other workers is found, though their checksum is right. The script finds it, too."""
    job, url = job_of(tmp_path, "sft"), tmp_path / "run"
    workers.run(run_other_split, 2, job, str(url))
    found = audit(RunFolder(Storage(str(url))))
    assert not found.clean
    assert any("split over the workers in another way" in finding for finding in found.findings), found.findings
    assert not any("what entered the forward pass" in finding for finding in found.findings)
    code, said = run_script(url)
    assert code == 1
    assert "step 0: who computed what is not what the lengths give" in said
    assert "what entered the forward pass" not in said


def run_other_split(rank, job, url):
    """A generation whose workers have exchanged their micro-batches."""
    from dataclasses import replace

    from planner.train import batches

    load = batches.Loader.load
    batches.Loader.load = lambda loader, cursor: load(replace(loader, rank=1 - loader.rank), cursor)
    try:
        return run_job(rank, job, url)
    finally:
        batches.Loader.load = load


def test_a_packed_row_keeps_its_documents(workers, tmp_path):
    """With `data.packing`, a sample is a row of several conversations. Rows form micro-batches, too."""
    losses = []
    for max_tokens in (None, 60):
        job = job_of(tmp_path, "sft", max_tokens=max_tokens)
        job = job.model_copy(update={"data": job.data.model_copy(update={"packing": True})})
        workers.run(run_job, 2, job, str(tmp_path / str(max_tokens)))
        audited(tmp_path / str(max_tokens))
        losses.append([step["loss"] for step in records(tmp_path / str(max_tokens))])
    assert losses[1] == pytest.approx(losses[0], rel=2e-5)


def test_loader_processes_find_the_same(workers, tmp_path):
    """The data set is mapped there, and the assignment is made there."""
    steps = []
    for processes in (0, 2):
        job = job_of(tmp_path, "dpo", workers={"loader_processes": processes})
        workers.run(run_job, 2, job, str(tmp_path / str(processes)))
        steps.append([(s["placement"], s["checksum"], s["loss"]) for s in records(tmp_path / str(processes))])
    assert json.dumps(steps[0]) == json.dumps(steps[1])


def test_a_model_is_checked_when_a_resumed_run_gets_max_tokens(workers, texts, tiny_model, tmp_path):
    """Its documents would see each other. The run that it resumes had one text in each row."""
    model = hf(tiny_model("opt"), weights="random")
    for max_tokens, refused in ((None, False), (48, True)):
        batch = {"max_tokens": max_tokens} if max_tokens else {}
        job = hf_job(texts, model, batch=batch, train={"steps": 4})
        if not refused:
            workers.run(run_hf, 2, job, str(tmp_path), 2)
            continue
        with pytest.raises(UserError, match=r"batch\.max_tokens: opt lets a packed row's documents see each other"):
            workers.run(run_hf, 2, job, str(tmp_path))


def test_an_audit_names_a_forged_limit_where_lengths_are_not_known(workers, tmp_path):
    """Rows that are tokenized on demand have none. The forged header is the finding, not an error of the data."""
    job, url = job_of(tmp_path, "sft", max_tokens=None), tmp_path / "run"
    job = job.model_copy(update={"data": job.data.model_copy(update={"tokenize": "on_demand"})})
    workers.run(run_job, 2, job, str(url))
    digest = make_plan(BatchSizes(global_batch=11, max_micro=4, max_tokens=70), 2).digest
    rechained(header(1, max_tokens=70, layout_version=2, plan_digest=digest))(url)
    found = audit(RunFolder(Storage(str(url)))).findings
    assert "generation 1: batch.max_tokens is 70 on record, and its job says None" in found
