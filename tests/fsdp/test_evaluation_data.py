"""Evaluation on a data set of its own, in real FSDP processes: exact at any size, and without effect on training."""

import pytest
from sample_sets import write_rows
from test_objectives import measured, sample_job
from worker_functions import records, run_job

from planner.errors import ResumeRefused, TrainingFailed
from planner.job import Job
from planner.provenance.audit import audit
from planner.provenance.identity import open_data
from planner.rehearsal.on_processes import rehearse, train_observed
from planner.rehearsal.stages import stages
from planner.runner.verify_job import compare
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.setup import Launch

pytestmark = pytest.mark.fsdp


def evaluated_job(folder, name, **evaluation):
    """The job of `sample_job`, with 11 other rows for evaluation."""
    job = sample_job(folder, name, eval={"samples": 0, "every": 2})
    path = write_rows(folder / "test.jsonl", job.data.kind, num_rows=11)
    values = job.model_dump(mode="json", by_alias=True)
    return Job.model_validate({**values, "eval": {"every": 2, "data": {"path": path}, **evaluation}})


def findings(url):
    return audit(RunFolder(Storage(str(url)))).findings


def checksums(url):
    return [(step["checksum"], step["tokens"]) for step in records(url)]


@pytest.mark.parametrize("name", ["sft", "dpo, cached", "kto"])
def test_evaluations_agree_at_every_size(workers, tmp_path, name):
    """1, 2 and 3 workers, and 3, 2, 1 on the way: the same samples and losses, and a clean audit."""
    job = evaluated_job(tmp_path, name)
    histories = {"1": [1], "2": [2], "3": [3], "resized": [3, 2, 1]}
    for label, sizes in histories.items():
        rehearse(workers, Launch(job=job, url=str(tmp_path / label)), stages(sizes, 5), train_observed)
        assert findings(tmp_path / label) == ()
    checks = compare(job, tmp_path / "2", tmp_path / "resized", [3, 2, 1])
    assert {check.what: check.detail for check in checks if not check.passed} == {}
    dataset, order = open_data(job)
    tokens = sum(dataset.evidence(int(row)).tokens for row in order.held_out_rows(0, 11))
    first = measured(tmp_path / "1")
    for label in histories:
        found = records(tmp_path / label, "eval")
        assert {(each["samples"], each["tokens"]) for each in found} == {(11, tokens)}
        for key, values in measured(tmp_path / label).items():
            assert values == pytest.approx(first[key], rel=1e-4, abs=1e-4), key


def test_training_is_as_without_the_evaluation(workers, tmp_path):
    """Its samples and its losses, to the bit. All rows are trained on."""
    job = evaluated_job(tmp_path, "sft", samples="30%")
    plain = job.model_copy(update={"eval": job.eval.model_copy(update={"data": None, "samples": 0})})
    for each, label in ((job, "evaluated"), (plain, "plain")):
        workers.run(run_job, 2, each, str(tmp_path / label))
    assert checksums(tmp_path / "evaluated") == checksums(tmp_path / "plain")
    assert [step["loss"] for step in records(tmp_path / "evaluated")] == [
        step["loss"] for step in records(tmp_path / "plain")
    ]
    assert {each["samples"] for each in records(tmp_path / "evaluated", "eval")} == {4}
    assert records(tmp_path / "plain", "eval") == []


def test_the_loss_is_that_of_the_same_rows_held_out(workers, tmp_path):
    """A witness: one file with both kinds of rows, of which the same ones are held out, evaluates to the same."""
    job = sample_job(tmp_path, "sft", steps=1, eval={"samples": 6, "every": 1})
    dataset, order = open_data(job)
    lines = (tmp_path / "chat.jsonl").read_text().splitlines()
    held_out = [int(row) for row in order.held_out_rows(0, 6)]
    assert dataset.num_rows == len(lines)
    (tmp_path / "test.jsonl").write_text("".join(f"{lines[row]}\n" for row in held_out))
    apart = job.model_dump(mode="json", by_alias=True)
    apart["eval"] = {"every": 1, "data": {"path": str(tmp_path / "test.jsonl")}}
    workers.run(run_job, 2, job, str(tmp_path / "held-out"))
    workers.run(run_job, 2, Job.model_validate(apart), str(tmp_path / "apart"))
    first, second = (records(tmp_path / name, "eval")[0] for name in ("held-out", "apart"))
    assert second["tokens"] == first["tokens"]
    assert second["loss"] == pytest.approx(first["loss"], rel=1e-6)


def test_another_evaluation_is_noted_on_resume(workers, tmp_path):
    """The run goes on, and the ledger and the audit of both generations are right."""
    job, url = evaluated_job(tmp_path, "sft"), tmp_path / "run"
    workers.run(run_job, 2, job, str(url), 2)
    other = write_rows(tmp_path / "other.jsonl", "chat", num_rows=5)
    rows = job.eval.data.model_copy(update={"path": other})
    now = job.model_copy(update={"eval": job.eval.model_copy(update={"data": rows})})
    workers.run(run_job, 3, now, str(url))
    assert findings(url) == ()
    header = records(url, "generation")[-1]
    assert header["changed"] == [
        f"eval.data.path: {tmp_path / 'test.jsonl'} -> {other}",
        "eval.data: other samples, 5 instead of 11. Earlier evaluations do not compare with later ones",
    ]
    assert [each["samples"] for each in records(url, "eval")] == [11, 5, 5, 5]


def test_held_out_rows_are_not_trained_on_by_accident(workers, tmp_path):
    """A run that held rows out does not go on with an evaluation of its own, unless other data is accepted."""
    job, url = evaluated_job(tmp_path, "sft"), str(tmp_path / "run")
    held_out = job.model_copy(update={"eval": job.eval.model_copy(update={"data": None, "samples": 4})})
    workers.run(run_job, 2, held_out, url, 2)
    with pytest.raises(ResumeRefused, match=r"eval\.data\.path: nothing -> "):
        workers.run(run_job, 2, job, url)
    workers.run(run_job, 2, job, url, None, ["data"])
    assert findings(url) == ()


def test_a_mixture_is_trained_and_audited_at_every_size(workers, tmp_path):
    """Two whole epochs over 20 rows of two sets, with rows held out of both: the same samples, and clean counts."""
    job = sample_job(tmp_path, "sft", steps=6, eval={"samples": 4, "every": 3})
    paths = [write_rows(tmp_path / f"{name}.jsonl", "chat", num_rows=number) for name, number in (("a", 15), ("b", 10))]
    values = job.model_dump(mode="json", by_alias=True)
    values["data"] = {"kind": "chat", "mixture": [{"path": paths[0]}, {"path": paths[1], "fraction": 0.5}]}
    job = Job.model_validate(values)
    for label, sizes in {"1": [1], "resized": [3, 2]}.items():
        rehearse(workers, Launch(job=job, url=str(tmp_path / label)), stages(sizes, 6), train_observed)
        found = audit(RunFolder(Storage(str(tmp_path / label))))
        assert found.clean, found.findings
        uses = [(use.name, use.samples, use.whole_epochs) for use in found.sets]
        assert uses == [(f"{paths[0]}", 12, 2), (f"{paths[1]}", 4, 2)]
        assert sum(use.after for use in found.sets) == 6 * 7 - 2 * 16
    assert checksums(tmp_path / "1") == checksums(tmp_path / "resized")
    facts = records(tmp_path / "resized", "generation")[1]["facts"]
    assert [(each["rows"], each["evaluated"]) for each in facts["sets"]] == [(15, 3), (5, 1)]
    run = RunFolder(Storage(str(tmp_path / "resized")))
    assert [run.manifest(name).facts for name in run.commits()] == [facts, facts]


def run_with_other_rows(rank, job, url):
    """The last of two nodes has another file at the path of `eval.data`."""
    rows = job.eval.data.model_copy(update={"path": f"{job.eval.data.path}.{rank}"})
    return run_job(rank, job.model_copy(update={"eval": job.eval.model_copy(update={"data": rows})}), url)


def test_workers_with_other_evaluations_are_refused(workers, tmp_path):
    """Before the first step: the training rows are the same, and the losses would be of other samples."""
    job = evaluated_job(tmp_path, "sft")
    for rank, number in enumerate((11, 10)):
        write_rows(tmp_path / f"test.jsonl.{rank}", "chat", num_rows=number)
    with pytest.raises(TrainingFailed, match="the data differs between workers"):
        workers.run(run_with_other_rows, 2, job, str(tmp_path / "run"))
