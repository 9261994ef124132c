"""A tracker of another package, the one of docs/extending.md: read, in the schema, and sent to."""

import importlib
import sys
import tomllib

import pytest
from ledgers import loss, two_losses
from test_extending_objective import DEMO, JobError, example, planner

from planner.errors import TrackerUnavailable
from planner.files import dump_job, parse_job, read_job
from planner.files.schema import job_schema
from planner.job import kind_registry
from planner.job.tracking import TRACKERS, JsonlTracking, TrackerSpec
from planner.tracking.child import subjects_of
from planner.tracking.sender import Sender


def install(folder, name, entries, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [f"{kind} = {value}\n" for kind, value in entries.items()]
    (info / "entry_points.txt").write_text("".join(["[planner.trackers]\n", *lines]))
    importlib.invalidate_caches()
    kind_registry.packages.cache_clear()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder with the package of the document; afterwards it was never there."""
    before = set(sys.modules)
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    files = example("A tracker")
    project = tomllib.loads(files["pyproject.toml"])["project"]
    install(folder, project["name"], project["entry-points"]["planner.trackers"], files)
    yield folder
    kind_registry.packages.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith(("planner_csv_log", "broken")):
            del sys.modules[name]


@pytest.mark.usefixtures("site")
def test_a_job_of_a_package_is_read_and_its_tracker_is_sent_to(tmp_path):
    """Each step once, also by a second process after a torn line. The job survives a dump."""
    job = read_job(DEMO, [f"tracking={{kind: csv, path: {tmp_path}/loss.csv}}"])
    assert type(job.tracking[0]).__module__ == "planner_csv_log.section"
    assert parse_job(dump_job(job)) == job
    run = two_losses(tmp_path / "run")
    (subject,) = subjects_of(job, run.url)
    Sender(subject, print).send(last=True)
    file = tmp_path / "loss.csv"
    whole = file.read_text()
    assert whole.splitlines()[:2] == ["0,", f"1,{loss(1, 0)}"]
    assert len(whole.splitlines()) == 17
    file.write_text("".join(whole.splitlines(keepends=True)[:5]) + "5,1.")
    again = Sender(subject, print)
    again._storage.delete("tracking")
    again.send(last=True)
    assert file.read_text() == whole
    assert job.tracking[0].kind == "csv"


@pytest.mark.process
def test_it_is_in_the_schema_and_in_errors(site):
    """Beside planner's own. Its section gives the errors."""
    one = job_schema()["properties"]["tracking"]["anyOf"]
    assert "csv" in one[0]["enum"]
    with pytest.raises(JobError, match=r"tracking\[0\]\.path: found nothing\. Write text"):
        read_job(DEMO, ["tracking=csv"])
    with pytest.raises(JobError, match="Write one of csv, jsonl, mlflow"):
        read_job(DEMO, ["tracking=cvs"])
    answer = planner(site, "schema")
    assert (answer.returncode, '"CsvTracking"' in answer.stdout) == (0, True)


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("broken_gone:SPEC", "ModuleNotFoundError: No module named 'broken_gone'"),
        ("planner_csv_log.section:CsvTracking", "it is not a TrackerSpec but ModelMetaclass"),
        ("planner_csv_log.section:CSV", "its TrackerSpec is of kind csv"),
    ],
)
def test_a_broken_package_harms_only_jobs_that_name_it(tmp_path, value, says):
    """They get one error with its name."""
    install(tmp_path / "site", "planner-broken", {"bad": value}, {})
    read_job(DEMO, ["tracking=jsonl"])
    with pytest.raises(JobError) as error:
        read_job(DEMO, ["tracking=bad"])
    assert says in str(error.value)
    assert "bad of planner-broken 0.1.0 cannot be used (" in str(error.value)
    with pytest.raises(TrackerUnavailable, match="bad of planner-broken"):
        TRACKERS.require_all()


def test_facts_that_contradict_each_other_are_refused():
    """At the birth of the spec, so a package's own tests see it."""
    with pytest.raises(ValueError, match="write module:name instead of 'module'"):
        TrackerSpec(config=JsonlTracking, open="module")
    with pytest.raises(ValueError, match="write module:name instead of 'module'"):
        TrackerSpec(config=JsonlTracking, open="module:name", check="module")
