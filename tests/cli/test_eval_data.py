"""A data set of its own for evaluation in the commands: its paths, its files, and what a dry run says of it."""

import json
from pathlib import Path

import pytest
import yaml

from planner.data.job_paths import require_paths
from planner.dispatch.launch import absolute
from planner.errors import DataError
from planner.job import Job
from planner.store.jobs import job_values
from planner.submit.shipment import collect

UNPACKED = "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_1"


def make_job(**sections):
    job = {
        "name": "tiny",
        "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16},
        "data": {"kind": "chat", "path": "rows/train.jsonl"},
        "objective": {"kind": "sft"},
        "batch": {"global": 3, "max_micro": 2},
        "train": {"steps": 4, "optimizer": {"kind": "adamw", "lr": 1e-3}},
        "workers": {"gpus": 0},
    }
    return {**job, **sections}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with 20 rows to train on, and two sets of 4 and 8 rows. Paths of jobs are relative to it."""
    monkeypatch.chdir(tmp_path)
    Path("rows").mkdir()
    for name, number in {"train": 20, "test": 4, "more": 8}.items():
        rows = ({"prompt": name, "completion": str(row)} for row in range(number))
        Path(f"rows/{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


BOTH = {"mixture": [{"path": "rows/test.jsonl"}, {"path": "rows/more.jsonl"}]}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"path": "gone.jsonl"}, "eval.data.path"),
        ({"mixture": ["rows/test.jsonl", "gone.jsonl"]}, r"eval.data.mixture\[1\].path"),
    ],
)
def test_a_missing_file_is_named_by_its_key(data, key):
    """Before anything is opened."""
    job = Job.model_validate(make_job(eval={"data": data}))
    with pytest.raises(DataError, match=rf"^{key}: no file at 'gone.jsonl'"):
        require_paths(job)


def test_its_files_are_sent_and_found(here):
    """A submitted job has the files of both data sets. Workers have another folder, so paths become absolute."""
    written = make_job(eval={"data": BOTH})
    Path("job.yaml").write_text(yaml.safe_dump(written))
    job = Job.model_validate(written)
    assert collect("job.yaml", job).data == ("rows/train.jsonl", "rows/test.jsonl", "rows/more.jsonl")
    placed = absolute(job, "/run").eval.data
    assert [each.path for each in placed.sets] == [f"{here}/rows/test.jsonl", f"{here}/rows/more.jsonl"]
    assert absolute(Job.model_validate(make_job()), "/run").eval.data is None


def test_a_submitted_job_is_stored_with_the_paths_of_the_user():
    """So it is the same job on every cluster."""
    sent = {"mixture": [{"path": f"{UNPACKED}/rows/test.jsonl"}, {"path": f"{UNPACKED}/rows/more.jsonl"}]}
    job = Job.model_validate(make_job(eval={"data": sent}))
    assert [each["path"] for each in job_values(job)["eval"]["data"]["mixture"]] == [
        "rows/test.jsonl",
        "rows/more.jsonl",
    ]


EVALUATIONS = {
    "held out": ({"samples": 3}, ["3 of 20 samples, held out of training"]),
    "a part": ({"samples": "11%"}, ["3 of 20 samples (11%), held out of training"]),
    "all": (
        {"data": {"path": "rows/test.jsonl"}},
        ["4 of 4 samples of rows/test.jsonl (eval.data)", "All 20 samples of data are trained on."],
    ),
    "sets": (
        {"data": BOTH, "samples": "50%"},
        [
            "6 of 12 samples of 2 data sets (eval.data)",
            "All 20 samples of data are trained on.",
            "evaluated of rows/test.jsonl: 2",
            "evaluated of rows/more.jsonl: 4",
        ],
    ),
    "none": ({}, []),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_a_dry_run_says_what_is_evaluated(cli, here, name):
    """How many samples, of how many, of what, and of each set."""
    evaluation, texts = EVALUATIONS[name]
    Path("job.yaml").write_text(yaml.safe_dump(make_job(eval=evaluation, checkpoint={"path": str(here / "run")})))
    answer = cli("run", "job.yaml", "--dry-run", "--json")
    assert answer.code == 0, answer.err
    found = [text.replace(f"{here}/", "") for text in json.loads(answer.out)["evaluation"]]
    assert found == texts
    lines = cli("run", "job.yaml", "--dry-run").out.splitlines()
    assert [line.replace(f"{here}/", "") for line in lines if line.startswith("eval  ")] == [
        f"eval      {text}" for text in texts[:1]
    ]


def test_a_dry_run_says_how_many_rows_are_held_out_of_each_set(cli, here):
    """Of a mixture, in proportion."""
    job = make_job(data={"kind": "chat", **BOTH}, eval={"samples": 3}, checkpoint={"path": str(here / "run")})
    Path("job.yaml").write_text(yaml.safe_dump(job))
    texts = json.loads(cli("run", "job.yaml", "--dry-run", "--json").out)["evaluation"]
    assert [text.replace(f"{here}/", "") for text in texts] == [
        "3 of 12 samples, held out of training",
        "held out of rows/test.jsonl: 1",
        "held out of rows/more.jsonl: 2",
    ]


@pytest.mark.parametrize(
    ("evaluation", "counts"),
    [({}, (6, 2, 4)), ({"samples": 3}, (3, 1, 2)), ({"data": {"path": "rows/train.jsonl"}}, (6, 2, 4))],
)
def test_a_dry_run_says_how_many_samples_an_epoch_has_of_each_set(cli, here, evaluation, counts):
    """Weights do not say it, and a share of the rows is rounded."""
    sets = [{"path": "rows/test.jsonl", "fraction": 0.5}, {"path": "rows/more.jsonl", "fraction": 0.5}]
    job = make_job(data={"kind": "chat", "mixture": sets}, eval=evaluation, checkpoint={"path": str(here / "run")})
    Path("job.yaml").write_text(yaml.safe_dump(job))
    texts = [
        f"{counts[0]} samples of 2 data sets in an epoch",
        f"samples of rows/test.jsonl: {counts[1]}",
        f"samples of rows/more.jsonl: {counts[2]}",
    ]
    found = json.loads(cli("run", "job.yaml", "--dry-run", "--json").out)["mixture"]
    assert [text.replace(f"{here}/", "") for text in found] == texts
    assert f"data      {texts[0]}" in cli("run", "job.yaml", "--dry-run").out.splitlines()


@pytest.mark.usefixtures("here")
def test_mistakes_in_the_section_are_named_by_their_keys(cli):
    """Not as one mistake of the whole section."""
    job = make_job(eval={"samples": "5 %", "data": {"mixture": [{"paht": "a"}]}})
    Path("job.yaml").write_text(yaml.safe_dump(job))
    errors = cli("plan", "job.yaml").err
    assert 'eval.samples: found "5 %" (text). Write a whole number from 0 to 1048576 or text such as 5%' in errors
    assert "eval.data.mixture[0].paht: found an unknown key. Did you mean eval.data.mixture[0].path?" in errors
