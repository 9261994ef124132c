"""A submitted job is stored with the paths of its user's folder, so that it is the same job on every cluster."""

import json
from types import SimpleNamespace

import pytest

from planner.cli.run_command import closing_text
from planner.job import After, Job, Lora
from planner.provenance.identity import identity_of, job_changes, stored_identity
from planner.runner.execute import RunResult
from planner.store.jobs import job_digest, job_file

Data = SimpleNamespace(fingerprint="f", num_rows=9, num_withheld=0)
UNPACKED = "/tmp/ray/session_{}/runtime_resources/working_dir_files/_ray_pkg_{}"
OWN = {"model": {"kind": "own"}, "objective": "own", "data": {"kind": "own", "path": "jobs/loop.py"}}
HF = {
    "model": {"kind": "hf", "path": "model", "context": 16, "chat_template": "mine.jinja"},
    "objective": {"kind": "dpo", "reference_model": "before"},
    "data": {"kind": "pairs", "path": "rows/*.jsonl"},
}
PATHS = (("data", "path"), ("model", "path"), ("model", "chat_template"), ("objective", "reference_model"))


def unpacked(sections, number):
    """The job as a driver on the cluster sees it, after Ray has unpacked its files."""
    optimizer = {"kind": "own"} if sections is OWN else {"kind": "adamw", "lr": 1e-3}
    job = {"name": "sent", "batch": {"global": 6, "max_micro": 4}, "workers": {"gpus": 0}}
    job |= {"train": {"steps": 4, "optimizer": optimizer}, **json.loads(json.dumps(sections))}
    for section, key in PATHS:
        if key in job[section]:
            job[section][key] = f"{UNPACKED.format(number, number)}/{job[section][key]}"
    return Job.model_validate(job)


def test_its_files_are_stored_by_the_paths_that_they_were_sent_by():
    """A model's folder cannot be taken for a name on the hub."""
    stored = json.loads(job_file(unpacked(HF, 1)))
    found = [stored[section][key] for section, key in PATHS]
    assert found == ["rows/*.jsonl", "./model", "./mine.jinja", "./before"]
    assert json.loads(job_file(unpacked(OWN, 1)))["data"]["path"] == "jobs/loop.py"


@pytest.mark.parametrize("sections", [OWN, HF])
def test_it_is_the_same_job_wherever_ray_unpacks_it(sections):
    """A run that goes on on another cluster has nothing to report or to refuse."""
    first, second = unpacked(sections, 1), unpacked(sections, 2)
    assert job_digest(first) == job_digest(second)
    assert job_changes(first, second) == []
    identity = identity_of(first, Data, Data)
    assert identity_of(second, Data, Data) == identity
    stored = Job.model_validate({key: value for key, value in json.loads(job_file(second)).items() if key != "format"})
    assert identity_of(stored, Data, Data, is_stored=True) == identity


def test_a_run_of_adapters_that_went_on_from_another_run_is_exported_merged():
    """Its adapters belong to weights that are in no folder."""
    job = unpacked(HF, 1).model_copy(update={"after": After(run="/shared/sft")})
    result = RunResult(url="/shared/run", step=4, total_steps=4, committed="", resume_command="")
    assert closing_text(job, result).endswith("planner export /shared/run -o models/sent")
    job = job.model_copy(update={"model": job.model.model_copy(update={"lora": Lora()})})
    assert closing_text(job, result).endswith("planner export /shared/run -o models/sent --merge")


def test_a_run_of_an_earlier_version_is_still_audited_with_the_paths_that_it_stored():
    """Its identity was made of those."""
    first, second = (identity_of(unpacked(HF, number), Data, Data, is_stored=True) for number in (1, 2))
    assert first.model != second.model


def test_the_audits_line_names_the_loop_in_the_users_folder():
    """The user copies it into a shell there."""
    result = RunResult(url="/shared/run", step=4, total_steps=4, committed="", resume_command="")
    assert closing_text(unpacked(OWN, 1), result).endswith("planner audit /shared/run --code jobs/loop.py")


@pytest.mark.parametrize("default", ["auto", "sdpa"])
def test_a_default_that_has_changed_is_that_of_the_recorded_identity(default):
    """0.2.0 left sdpa out of an identity. Since then it is recorded, as what is not the default."""
    sdpa, now = (attention_of(attention) for attention in ("sdpa", default))
    recorded = identity_of(now, Data, Data, is_stored=True)
    assert stored_identity(sdpa, Data, Data, recorded) == recorded
    other = identity_of(attention_of("eager"), Data, Data, is_stored=True)
    assert stored_identity(sdpa, Data, Data, other) != other


def attention_of(attention):
    job = unpacked(HF, 1)
    return job.model_copy(update={"model": job.model.model_copy(update={"attention": attention})})
