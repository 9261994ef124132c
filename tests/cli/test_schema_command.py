"""`planner schema` and `planner init`: the schema for editors, and a first job."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from planner.files import parse_job, read_job
from planner.files.schema import EDITOR_LINE, job_schema, schema_text
from planner.files.template import template_job
from planner.job import batch_sizes
from planner.plan import make_plan

JOBS = Path(__file__).parents[2] / "jobs"
SHIPPED = sorted(JOBS.rglob("*.yaml"))
DEMO = JOBS / "demo.yaml"


class Yaml12(yaml.SafeLoader):
    """Reads `3e-3` as a number, like editors and planner's own reader."""


Yaml12.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?$"), list("-+0123456789")
)


def satisfies(text):
    validator = jsonschema.Draft202012Validator(job_schema())
    validator.check_schema(job_schema())
    return [error.message for error in validator.iter_errors(yaml.load(text, Yaml12))]


def test_the_schema_is_printed(cli):
    """One JSON document, equal to the one in jobs/."""
    answer = cli("schema")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out) == job_schema()


def test_the_schema_in_the_repository_is_current():
    """After a change of the model: `planner schema > jobs/job.schema.json`."""
    assert (JOBS / "job.schema.json").read_text() == schema_text()


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_shipped_jobs_name_the_schema_and_satisfy_it(file):
    """So editors report no mistake in them."""
    text = file.read_text()
    up = "../" * (len(file.relative_to(JOBS).parts) - 1)
    assert text.startswith(EDITOR_LINE.replace("job.schema.json", f"{up}job.schema.json") + "\n")
    assert satisfies(text) == []


def test_the_schema_refuses_wrong_jobs():
    """Without this, the tests above would prove nothing."""
    text = DEMO.read_text()
    assert satisfies(text.replace("global: 64", "globl: 64"))
    assert satisfies(text.replace("objective: lm", "objective: dop"))
    assert satisfies(text.replace("global: 64", "global: 0"))
    assert satisfies(text.replace("gpus: 0", "gpus: 0\n  resources: {TPU: 1}"))
    assert not satisfies(text.replace("gpus: 0", "gpus: 0\n  resources: {fast_disk: 1}"))


def test_every_field_says_what_it_is():
    """In the field itself, or in the section that it opens."""
    schema = job_schema()
    sections = {"Job": schema, **schema["$defs"]}

    def described(field):
        opened = field.get("$ref", "").rpartition("/")[2]
        return field.get("description") or (opened and sections[opened].get("description"))

    fields = {f"{s}.{name}": field for s, section in sections.items() for name, field in section["properties"].items()}
    assert [name for name, field in fields.items() if not described(field)] == []


# -- init


def test_what_init_writes_can_be_used_as_it_is(cli, tmp_path):
    """It is read, planned and valid by the schema beside it. The next two commands are printed."""
    answer = cli("init")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        "wrote job.yaml and job.schema.json (for your editor)",
        "",
        "see the plan:  planner plan job.yaml",
        "train:         planner run job.yaml",
    ]
    text = (tmp_path / "job.yaml").read_text()
    assert text.startswith(f"{EDITOR_LINE}\n")
    assert satisfies(text) == []
    assert json.loads((tmp_path / "job.schema.json").read_text()) == job_schema()
    job = read_job(tmp_path / "job.yaml")
    assert (job.name, job.run_path, job.data.path, job.workers.gpus) == ("job", "runs/job", "python-stdlib", 0)
    assert make_plan(batch_sizes(job), 3).global_batch == 64
    assert cli("plan", "job.yaml").code == 0


@pytest.mark.parametrize("name", ["job", "a-name-of-its-own"])
def test_remarks_of_the_starter_stand_in_a_column(name):
    """With a job name of any length."""
    keys = [line for line in template_job(name).splitlines() if re.match(r" +(# )?\w+: \S+ .*# ", line)]
    assert len(keys) > 20
    assert {line.index("# ", 6) for line in keys if not line.startswith("  name")} == {31}


def test_a_comment_of_the_starter_is_the_default():
    """With every `# key: value` made a setting, the job is the same, and no setting of a job is missing."""
    text = template_job("first")
    full = re.sub(r"(?m)^( *)# (\w+: )", r"\1\2", text)
    assert full != text
    assert parse_job(full) == parse_job(text)
    written, known = yaml.load(full, Yaml12), parse_job(text).model_dump(by_alias=True)
    missing = {
        f"{section}.{key}"
        for section in set(known) - {"name", "objective", "after"}
        for key in set(known[section]) - set(written[section])
    }
    # Text has no data set of its own for evaluation, bytes are no documents, and windows have one length.
    by_length = {"batch.max_tokens", "batch.attention_at"}
    assert missing == {"train.epochs", "train.examples", "eval.data", "data.documents", *by_length}


def test_the_run_is_named_after_the_file(cli, tmp_path):
    """Two jobs in one folder are two runs. Characters that a name may not have are left out."""
    (tmp_path / "sub").mkdir()
    for path, name in [("sub/My Run!.yaml", "my-run"), ("_.yaml", "my-run"), ("a.b-1.yaml", "a.b-1")]:
        assert cli("init", path).code == 0
        assert read_job(tmp_path / path).name == name
    assert (tmp_path / "sub" / "job.schema.json").exists()


def test_init_replaces_nothing_unless_forced(cli, tmp_path):
    """It replaces neither the job nor its schema."""
    (tmp_path / "job.yaml").write_text("mine")
    (tmp_path / "job.schema.json").write_text("mine")
    answer = cli("init")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "planner: job.yaml: the file exists. Write another path, or replace it with --force\n"
    assert (tmp_path / "job.yaml").read_text() == "mine"
    assert cli("init", "other.yaml").out.startswith("wrote other.yaml\n")
    assert (tmp_path / "job.schema.json").read_text() == "mine"
    assert cli("init", "--force").code == 0
    assert (tmp_path / "job.yaml").read_text() == template_job("job")
    assert (tmp_path / "job.schema.json").read_text() == schema_text()


def test_a_dry_init_writes_nothing(cli, tmp_path):
    """It prints the text of the file."""
    answer = cli("init", "x.yaml", "--dry-run")
    assert (answer.code, answer.out) == (0, template_job("x"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "PATH is empty"),
        (".", "found a folder"),
        ("gone/job.yaml", "there is no folder gone"),
        ("a\0b", "cannot write there"),
        ("x" * 300, "cannot write there"),
    ],
)
def test_a_path_that_cannot_be_written_is_a_sentence(cli, path, says):
    """Exit code 2, one line."""
    answer = cli("init", path)
    assert answer.code == 2
    assert says in answer.err
    assert answer.err.count("\n") == 1
