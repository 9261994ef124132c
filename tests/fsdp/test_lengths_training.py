"""Micro-batches by length in real FSDP processes: the samples, losses and bits of a run, and what the audit finds."""

import json
import os
import random
import re
from pathlib import Path

import pytest
from events import wait_for
from forging import header, rechained
from sample_sets import write_rows
from test_bitwise import result
from test_hf_training import hf, hf_job, run_hf
from test_training import crash_at
from verifiers import run_script
from worker_functions import make_job, records, run_job

from planner.errors import DataError, ResumeRefused, TrainingFailed, UserError
from planner.plan import BatchSizes, make_plan
from planner.provenance.audit import audit
from planner.rehearsal.on_processes import rehearse, train_observed
from planner.rehearsal.stages import stages
from planner.runner.verify_job import compare
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.setup import Launch, open_data_once

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


def on_demand(job):
    return job.model_copy(update={"data": job.data.model_copy(update={"tokenize": "on_demand"})})


@pytest.mark.parametrize(
    "name", ["dpo, cached", *(pytest.param(each, marks=pytest.mark.slow) for each in ("sft", "kto"))]
)
def test_rows_on_demand_have_the_bits_of_rows_tokenized_ahead(workers, tmp_path, name):
    """The same split of each step and the same weights. Also on 3 workers and 1, from loader processes."""
    ahead, found = job_of(tmp_path, name, equality="bitwise"), []
    loading = on_demand(job_of(tmp_path, name, equality="bitwise", workers={"loader_processes": 1}))
    for number, job in enumerate((ahead, on_demand(ahead))):
        workers.run(run_job, 2, job, str(tmp_path / str(number)))
        placements = [step["placement"] for step in records(tmp_path / str(number))]
        assert all(placements)
        found.append((result(tmp_path / str(number)), placements))
    assert found[0] == found[1]
    workers.run(run_job, 3, loading, str(tmp_path / "resized"), 2)
    workers.run(run_job, 1, loading, str(tmp_path / "resized"))
    assert result(tmp_path / "resized") == found[0][0]
    audited(tmp_path / "1")
    audited(tmp_path / "resized")


def test_a_run_on_demand_gets_max_tokens_only_if_its_data_is_accepted(workers, tmp_path):
    """Lengths are a part of such data. Another limit is not."""
    url = str(tmp_path / "run")
    workers.run(run_job, 2, on_demand(job_of(tmp_path, "sft", max_tokens=None)), url, 2)
    limited = on_demand(job_of(tmp_path, "sft", max_tokens=70))
    with pytest.raises(ResumeRefused, match=r"batch.max_tokens: null -> 70, and with it data that is tokenized on dem"):
        workers.run(run_job, 3, limited, url)
    workers.run(run_job, 3, limited, url, 1, ("data",))
    workers.run(run_job, 2, on_demand(job_of(tmp_path, "sft", max_tokens=80)), url)
    audited(url)


def run_rewritten(rank, job, url):
    """A generation whose file gets a shorter row after it was opened, without a trace in its size and time."""
    path, opened = Path(job.data.path), Path(url).with_suffix(".opened")
    _, order = open_data_once(job)
    row = order.rows(22, 33).tolist()[0]
    opened.mkdir(exist_ok=True)
    (opened / str(rank)).touch()
    wait_for(lambda: (opened / "0").exists() and (opened / "1").exists())
    if not rank:
        lines, before = path.read_text().splitlines(), path.stat().st_mtime_ns
        shorter = json.dumps(json.loads(lines[row]) | {"prompt": "z", "completion": "z"})
        lines[row] = shorter.ljust(len(lines[row]))
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, ns=(before, before))
        (opened / "written").write_text(str(row + 1))
    wait_for((opened / "written").exists)
    return run_job(rank, job, url)


def test_all_workers_stop_before_a_step_with_another_length(workers, tmp_path):
    """They commit the steps before it and raise one error, which names the row and both lengths."""
    job, url = on_demand(job_of(tmp_path, "sft")), tmp_path / "run"
    with pytest.raises(DataError) as raised:
        workers.run(run_rewritten, 2, job, str(url))
    row = (tmp_path / "run.opened" / "written").read_text()
    assert re.search(rf"chat.jsonl:{row} has \d+ tokens, and had \d+ when the lengths", str(raised.value))
    assert [record["step"] for record in records(url)] == [0, 1]
    assert [record["step"] for record in records(url, "commit")][-1] == 2


def test_an_audit_names_a_forged_limit_where_lengths_are_not_known(workers, tmp_path):
    """Rows that are tokenized on demand have none. The forged header is the finding, not an error of the data."""
    job, url = on_demand(job_of(tmp_path, "sft", max_tokens=None)), tmp_path / "run"
    workers.run(run_job, 2, job, str(url))
    digest = make_plan(BatchSizes(global_batch=11, max_micro=4, max_tokens=70), 2).digest
    rechained(header(1, max_tokens=70, layout_version=2, plan_digest=digest))(url)
    found = audit(RunFolder(Storage(str(url)))).findings
    assert "generation 1: batch.max_tokens is 70 on record, and its job says None" in found
