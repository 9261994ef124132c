"""Paths in a job are relative to the folder that planner runs in: which it is, and where the file is instead."""

import pytest
import yaml

from planner.data.job_paths import require_paths
from planner.files import read_job

SUBMIT = ("--address", "http://127.0.0.1:1", "--set", "checkpoint.path=/shared/x", "--dry-run")
COMMANDS = {"run": ("--dry-run",), "verify": ("--dry-run",), "submit": SUBMIT}
OWN = {"model": {"kind": "own"}, "objective": "own", "data": {"kind": "own", "path": "loop.py"}}
GPT = {
    "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16},
    "data": {"kind": "text", "path": "*.txt"},
}
HF = {
    "model": {"kind": "hf", "path": "./model", "context": 16, "chat_template": "mine.jinja"},
    "data": {"kind": "pairs", "path": "rows.jsonl"},
    "objective": {"kind": "dpo", "reference_model": "before"},
}


def found(folder, *names):
    """Make files in a folder. A name with a slash at its end is a model's folder."""
    for name in names:
        path = folder / name
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
            (path / "config.json").write_text('{"model_type": "llama"}')
        else:
            path.write_text("")


@pytest.fixture
def job_in(tmp_path):
    """`job_in(sections)`: writes `examples/job.yaml`."""

    def write(sections):
        (tmp_path / "examples").mkdir()
        optimizer = {"kind": "own"} if sections["model"] == OWN["model"] else {"kind": "adamw", "lr": 1e-3}
        job = {"name": "here", "batch": {"global": 6, "max_micro": 4}, "workers": {"gpus": 0}}
        job |= {"train": {"steps": 4, "optimizer": optimizer}, **sections}
        (tmp_path / "examples" / "job.yaml").write_text(yaml.safe_dump(job))
        return "examples/job.yaml"

    return write


def said(answer):
    """The error, which is one line."""
    assert (answer.code, answer.out) == (2, "")
    (line,) = answer.err.splitlines()
    return line


@pytest.mark.parametrize("command", COMMANDS)
def test_a_loop_beside_the_job_file_is_found_by_another_folder(cli, job_in, tmp_path, command):
    """The error has the command that works."""
    job = job_in(OWN)
    found(tmp_path / "examples", "loop.py")
    assert said(cli(command, job, *COMMANDS[command])) == (
        f"planner: data.path: no Python file at 'loop.py' (relative to {tmp_path}, where planner runs). It is beside "
        f"the job file in examples: cd examples && planner {command} job.yaml"
    )


@pytest.mark.parametrize("path", ["examples/loop.py", "loops/loop.py"])
def test_a_path_that_is_right_from_the_folder_above_is_found_too(cli, job_in, tmp_path, monkeypatch, path):
    """Such as `jobs/own_loop.py` in `jobs/own_loop.yaml`."""
    job_in({**OWN, "data": {"kind": "own", "path": path}})
    for folder in ("loops", "other"):
        (tmp_path / folder).mkdir()
    found(tmp_path, path)
    monkeypatch.chdir(tmp_path / "other")
    line = said(cli("run", "../examples/job.yaml", "--dry-run"))
    assert line.endswith(f"It is in {tmp_path}: cd {tmp_path} && planner run examples/job.yaml")


# What is there, the key of the path that is not, and the path.
LACKING = {
    "a pattern": (GPT, [], "data.path: no file at '*.txt'"),
    "rows": (HF, [], "data.path: no file at 'rows.jsonl'"),
    "a model's folder": (HF, ["rows.jsonl"], "model.path: no folder at './model'"),
    "a reference that could be a name on the hub": (
        HF,
        ["rows.jsonl", "model/"],
        "objective.reference_model: no folder at 'before'",
    ),
    "a template": (HF, ["rows.jsonl", "model/", "before/"], "model.chat_template: no file at 'mine.jinja'"),
}


@pytest.mark.parametrize("lacking", LACKING)
def test_every_path_of_a_job_has_the_same_words(cli, job_in, tmp_path, lacking):
    """Data, models and templates: the folder that they are relative to, and where they are."""
    sections, here, what = LACKING[lacking]
    job = job_in(sections)
    found(tmp_path / "examples", "a.txt", "rows.jsonl", "model/", "before/", "mine.jinja")
    found(tmp_path, *here)
    assert said(cli("run", job, "--dry-run")) == (
        f"planner: {what} (relative to {tmp_path}, where planner runs). It is beside the job file in examples: "
        "cd examples && planner run job.yaml"
    )


def test_a_file_that_is_nowhere_says_what_to_write(cli, job_in, tmp_path):
    """No folder is advised in which it is not, either."""
    line = said(cli("run", job_in(OWN), "--dry-run"))
    assert line.endswith(f"no Python file at 'loop.py' (relative to {tmp_path}, where planner runs). Write NAME.py")


def test_a_name_that_cannot_be_imported_is_still_called_that(cli, job_in, tmp_path, monkeypatch):
    """The file is there."""
    job_in({**OWN, "data": {"kind": "own", "path": "my-loop.py"}})
    monkeypatch.chdir(tmp_path / "examples")
    found(tmp_path / "examples", "my-loop.py")
    line = said(cli("run", "job.yaml", "--dry-run"))
    assert line.endswith("that can be imported. Write NAME.py, without dots or dashes")


def test_a_model_with_a_revision_is_one_of_the_hub(job_in, tmp_path, monkeypatch):
    """A folder of the same name beside the job file is another model: only revisions of the hub are looked for."""
    job = job_in({**HF, "model": {"kind": "hf", "path": "mine", "revision": "v1", "context": 16}, "objective": "dpo"})
    found(tmp_path, "rows.jsonl")
    found(tmp_path / "examples", "mine/")
    monkeypatch.chdir(tmp_path)
    require_paths(read_job(job), job)
