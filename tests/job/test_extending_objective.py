"""docs/extending.md, run as it stands: packages made in a temporary folder, and what planner makes of them."""

import importlib
import json
import re
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path

import jsonschema
import pytest
import torch.distributed as dist
import yaml
from sample_sets import write_rows
from worker_functions import records, run_job

from planner.errors import JobError, ObjectiveUnavailable, StoreError
from planner.files import dump_job, parse_job, read_job
from planner.files.schema import job_schema
from planner.job import ObjectiveSpec, batch_sizes, kind_registry, objective_registry
from planner.job.objective_registry import OBJECTIVES, shown_metrics
from planner.plan import make_plan
from planner.provenance.audit import audit
from planner.rehearsal.local_workers import LocalWorkers
from planner.report.run_view import step_line
from planner.store.records import StepRecord
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.story.run_story import RunStory
from planner.train.generation import train
from planner.train.loop import Hooks
from planner.train.setup import Launch
from planner.train.world import cpu_device

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "jobs" / "demo.yaml"


def example(section):
    """The files of a section of docs/extending.md, by the last name in backquotes before each block."""
    text = (ROOT / "docs" / "extending.md").read_text()
    (body,) = re.findall(rf"(?ms)^## {section}\n(.*?)(?=^## |\Z)", text)
    blocks = re.findall(r"(?ms)`([\w./]+)`[^`]*?:\n\n```\w+\n(.*?)^```$", body)
    assert len(blocks) == body.count("\n```") / 2, "each block has a name"
    return dict(blocks)


def install(folder, name, entries, files):
    """What pip would do: the files, and the distribution's entry points beside them."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [f"{kind} = {value}\n" for kind, value in entries.items()]
    (info / "entry_points.txt").write_text("".join(["[planner.objectives]\n", *lines]))


def forget():
    """Planner reads entry points once in a process."""
    for known in (kind_registry.packages, objective_registry.shown_metrics):
        known.cache_clear()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder where packages can be installed; afterwards none of them was ever there."""
    before = set(sys.modules)
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    forget()
    yield folder
    forget()
    for name in set(sys.modules) - before:
        if name.startswith(("planner_hinge", "broken")):
            del sys.modules[name]


@pytest.fixture
def hinge(site, tmp_path):
    """The package of the document, installed, and the path of its job; its data lies beside that."""
    files = example("An objective")
    project = tomllib.loads(files["pyproject.toml"])["project"]
    install(site, project["name"], project["entry-points"]["planner.objectives"], files)
    importlib.invalidate_caches()
    write_rows(tmp_path / "pairs.jsonl", "pairs")
    file = tmp_path / "hinge.yaml"
    file.write_text(files["hinge.yaml"])
    return file


def python(site, *words):
    """A process of its own, in the folder above `site`."""
    environment = {"PYTHONPATH": f"{site}:{ROOT}", "COLUMNS": "200"}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, check=False, cwd=site.parent, env=environment, capture_output=True, text=True)


def planner(site, *words):
    """The command."""
    return python(site, "-m", "planner.cli", *words)


@pytest.fixture
def world_of_one(tmp_path):
    """A process group with this process alone in it."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# -- the example


@pytest.mark.process
def test_a_job_of_a_package_is_read_and_planned(hinge, site):
    """As one of planner's own: by its class, through a dump, and by the command; torch is not loaded."""
    job = read_job(hinge)
    assert (job.objective.kind, job.objective.delta, job.reference.source) == ("hinge", 2.0, "none")
    assert type(job.objective).__module__ == "planner_hinge.objective"
    assert parse_job(dump_job(job)) == job
    assert make_plan(batch_sizes(job), 4).global_batch == 6
    answer = planner(site, "plan", hinge.name, "--gpus", "4")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "2 x 2 + 2 x 1" in answer.stdout
    look = f"import sys; from planner.files import read_job; read_job({str(hinge)!r}); print('torch' in sys.modules)"
    assert python(site, "-c", look).stdout == "False\n"


@pytest.mark.process
def test_a_job_of_a_package_is_in_the_schema(hinge, site):
    """Beside planner's own, with its bounds."""
    schema = job_schema()
    assert "hinge" in schema["properties"]["objective"]["anyOf"][0]["enum"]
    validator = jsonschema.Draft202012Validator(schema)
    written = yaml.safe_load(hinge.read_text())
    assert list(validator.iter_errors(written)) == []
    assert list(validator.iter_errors(written | {"objective": {"kind": "hinge", "delta": -1}})) != []
    answer = planner(site, "schema")
    assert json.loads(answer.stdout) == schema


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "objective.delta=-1",
            "objective.delta: found -1 (a whole number). Write a number above 0 and at most 1000 (the d",
        ),
        ("objective.detla=1", "objective.detla: found an unknown key. Did you mean objective.delta?"),
        ("objective.kind=hing", 'found "hing" (text). Write one of dpo, hinge, ipo'),
        (
            "data.kind=chat",
            "objective hinge does not learn from data.kind chat. Write data.kind pairs, or objective: lm or sft",
        ),
    ],
)
def test_a_wrong_job_of_a_package_is_told_what_to_write(hinge, override, says):
    """The errors come from the section of the package."""
    with pytest.raises(JobError) as error:
        read_job(hinge, [override])
    assert says in str(error.value)


def test_the_errors_of_other_jobs_name_the_objective_of_a_package(hinge):
    """Where it would fit."""
    with pytest.raises(JobError, match=r"or objective: dpo or ipo or simpo or orpo or hinge$"):
        read_job(hinge, ["objective={kind: sft}"])


@pytest.mark.process
@pytest.mark.usefixtures("world_of_one")
def test_a_job_of_a_package_is_trained_and_its_metrics_are_shown(hinge, site, monkeypatch):
    """By the real loop. The audit is clean, and the loss is the formula's."""
    monkeypatch.chdir(hinge.parent)
    job = read_job(hinge)
    outcome = train(Launch(job=job, url=job.run_path), cpu_device, Hooks())
    assert (outcome.step, outcome.finished) == (4, True)
    found = audit(RunFolder(Storage(job.run_path)))
    assert found.clean, found.findings
    ledger = [json.loads(line) for line in (hinge.parent / job.run_path / "ledger" / "000001.jsonl").open()]
    steps = [line["record"] for line in ledger if line["record"]["kind"] == "step"]
    # First weights find all completions of a length nearly alike: some pairs are satisfied, others are far from it.
    assert all(0 <= step["metrics"]["satisfied"] <= 1 for step in steps)
    assert all(step["loss"] >= 2.0 - step["metrics"]["margin"] - 1e-4 for step in steps)
    shown = planner(site, "show", job.run_path).stdout
    assert re.search(r"objective +hinge, delta 2.0\n", shown), shown
    assert re.search(r"loss +[0-9.]+, margin -?[0-9.]+, satisfied [01]\.[0-9]+\n", shown), shown
    story = RunStory(step=4, total_steps=4, last_step=StepRecord.model_validate(steps[-1]))
    assert re.search(r"step 4/4  loss \S+  margin \S+  satisfied \S+  ", step_line(story))


@pytest.mark.fsdp
def test_workers_of_other_processes_train_a_job_of_a_package(hinge, monkeypatch):
    """They get it by pickle, and find the package. Two of them compute what one does."""
    monkeypatch.chdir(hinge.parent)
    job = read_job(hinge)
    with LocalWorkers(2) as workers:
        for world_size in (1, 2):
            workers.run(run_job, world_size, job, str(hinge.parent / str(world_size)))
    one, two = ([s["loss"] for s in records(hinge.parent / name)] for name in "12")
    assert len(one) == 4
    assert two == pytest.approx(one, rel=1e-4)


# -- packages that cannot be used

BROKEN = {
    "no module": ("broken_gone:SPEC", "", "ModuleNotFoundError: No module named 'broken_gone'"),
    "no name": ("broken:OTHER", "", "AttributeError: module 'broken' has no attribute 'OTHER'"),
    "raises": ("broken:SPEC", "raise RuntimeError('of its own')", "RuntimeError: of its own"),
    "no spec": ("broken:SPEC", "SPEC = 3", "(it is not an ObjectiveSpec but int)"),
    "another kind": (
        "broken:SPEC",
        "from planner.job.objectives.dpo import DPO as SPEC",
        "(its ObjectiveSpec is of kind dpo)",
    ),
    "contradiction": (
        "broken:SPEC",
        (
            "from planner.job import *\n"
            "SPEC = ObjectiveSpec(config=SimpoObjective, samples=(), reference='none', build='a:b')"
        ),
        "ValueError: ObjectiveSpec of SimpoObjective: samples must name what it learns from, such as",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_package_harms_only_jobs_that_name_it(hinge, site, name):
    """They get one error with its name. Other jobs, other packages and other jobs' errors go on without it."""
    value, code, says = BROKEN[name]
    install(site, "planner-broken", {"bad": value}, {"broken.py": code} if code or "OTHER" in value else {})
    importlib.invalidate_caches()
    forget()
    read_job(DEMO)
    assert not {"broken", "planner_hinge"} & {module.partition(".")[0] for module in sys.modules}
    read_job(hinge)
    with pytest.raises(JobError, match="Write one of dpo, hinge, ipo"):
        read_job(hinge, ["objective.kind=hing"])
    assert "satisfied" in shown_metrics()
    with pytest.raises(JobError) as error:
        read_job(hinge, ["objective={kind: bad}"])
    (line,) = str(error.value).splitlines()
    assert "objective: planner.objectives: bad of planner-broken 0.1.0 cannot be used (" in line
    assert line.endswith(". Repair or uninstall the package")
    assert says in line
    with pytest.raises(ObjectiveUnavailable, match="bad of planner-broken"):
        OBJECTIVES.require_all()


@pytest.mark.process
def test_schema_refuses_a_broken_package(hinge, site):
    """Else an editor would call a job wrong for a reason that nobody was told."""
    install(site, "planner-broken", {"bad": "broken_gone:SPEC"}, {})
    answer = planner(site, "schema")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("planner: planner.objectives: bad of planner-broken 0.1.0 cannot be used (Module")
    assert answer.stderr.count("\n") == 1
    assert planner(site, "plan", hinge.name).returncode == 0


def test_planner_never_chooses_between_two_objectives_of_one_kind(hinge, site):
    """Jobs of that kind are refused, and no other job."""
    install(
        site, "planner-other", {"hinge": "planner_hinge.objective:HINGE", "dpo": "planner_hinge.objective:HINGE"}, {}
    )
    importlib.invalidate_caches()
    forget()
    read_job(DEMO)
    with pytest.raises(JobError, match=r"hinge of planner-hinge [0-9.]+ and planner-other [0-9.]+ cannot be used"):
        read_job(hinge)
    with pytest.raises(JobError, match=r"dpo of planner-other [0-9.]+ cannot .*dpo is an objective of planner's own"):
        read_job(hinge, ["objective={kind: dpo}"])
    read_job(hinge, ["objective={kind: ipo}"])


@pytest.mark.usefixtures("world_of_one")
def test_a_class_that_cannot_be_loaded_stops_the_run(hinge, site, monkeypatch):
    """With one error on all workers, not with a traceback that Ray would take for a lost node."""
    monkeypatch.chdir(hinge.parent)
    (site / "planner_hinge" / "loss.py").write_text("import nothing_of_that_name\n")
    job = read_job(hinge)
    with pytest.raises(
        ObjectiveUnavailable, match=r"objective hinge: cannot load planner_hinge.loss:Hinge: ModuleNotF"
    ):
        train(Launch(job=job, url=job.run_path), cpu_device, Hooks())


@pytest.mark.usefixtures("world_of_one")
def test_a_class_that_cannot_be_made_stops_the_run(hinge, site, monkeypatch):
    """So does it, not thirty worker groups one after another."""
    monkeypatch.chdir(hinge.parent)
    (site / "planner_hinge" / "loss.py").write_text("def Hinge(*_arguments):\n    return {}['key']\n")
    job = read_job(hinge)
    with pytest.raises(ObjectiveUnavailable, match=r"objective hinge: planner_hinge.loss:Hinge: KeyError: 'key'"):
        train(Launch(job=job, url=job.run_path), cpu_device, Hooks())


@pytest.mark.usefixtures("site")
def test_a_run_whose_package_is_gone_says_so(tmp_path):
    """It is not the version of planner that is wrong."""
    job = json.dumps({"format": 1, "objective": {"kind": "gone"}}).encode()
    digest = sha256(job).hexdigest()
    run = RunFolder(Storage(str(tmp_path / "run")))
    run.storage.write(f"jobs/{digest}.json", job)
    with pytest.raises(
        StoreError, match=r"not a job of .* as it is installed here: found objective gone\. .* or install"
    ):
        run.job(digest)


VALIDATES = """
from typing import Literal
from pydantic import field_validator
from planner.job import Objective, ObjectiveSpec

class Bad(Objective):
    kind: Literal["bad"]
    beta: float = 1.0

    @field_validator("beta")
    @classmethod
    def read(cls, beta):
        return {}[beta]

SPEC = ObjectiveSpec(config=Bad, samples=("texts",), reference="none", build="a:b")
"""


@pytest.mark.usefixtures("hinge")
def test_a_validator_that_raises_is_one_line(site):
    """What pydantic does not take for a flaw of the job's."""
    install(site, "planner-broken", {"bad": "broken:SPEC"}, {"broken.py": VALIDATES})
    importlib.invalidate_caches()
    forget()
    read_job(DEMO, ["objective={kind: bad}"])
    with pytest.raises(JobError, match=r"bad of planner-broken 0.1.0 cannot be used \(KeyError: 2.0\)\. Repair"):
        read_job(DEMO, ["objective={kind: bad, beta: 2}"])


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"reference": "none", "config": "dpo"}, "reference is none, but the section has a field for it"),
        ({"reference": "required", "config": "dpo"}, "reference is required, but .* may be none"),
        ({"reference": "optional", "config": "kto"}, "reference is optional, so the section needs a field"),
        ({"reference": "optional", "config": "dpo", "samples": ("texts",)}, "may be cached only if samples are pairs"),
        ({"samples": ()}, "samples must name what it learns from"),
        ({"build": "module.Class"}, "write module:name instead of 'module.Class'"),
        ({"least_batch": "2"}, "least_batch must be a whole number from 1, found '2'"),
        ({"shown": ["margin"]}, "shown must map metrics to labels, found list"),
    ],
)
def test_facts_that_contradict_each_other_are_refused(facts, says):
    """At the birth of the spec, so a package's own tests see it."""
    config = objective_registry.OURS[facts.get("config", "simpo")].config
    usual = {"samples": ("pairs",), "reference": "none", "build": "module:Class"}
    with pytest.raises(ValueError, match=says):
        ObjectiveSpec(**usual | facts | {"config": config})
