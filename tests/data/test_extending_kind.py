"""A kind of data from another package: the example of docs/extending.md, as it stands there."""

import importlib
import json
import sys

import jsonschema
import pytest
from plugin_package import install, install_example
from rows_of import prompt_and_completion
from worker_functions import records, run_job

from planner.data import sample_cache
from planner.data.open import open_dataset
from planner.errors import DataError, DataKindUnavailable, JobError
from planner.files import dump_job, read_job
from planner.files.schema import job_schema
from planner.job import DataSpec, RowsData, kind_registry
from planner.job.data_registry import DATA_KINDS
from planner.provenance.audit import audit
from planner.rehearsal.local_workers import LocalWorkers
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

ROWS = [{"en": f"word {number}", "de": f"Wort {number * number}"} for number in range(40)]


def forget():
    """planner reads entry points once in a process."""
    importlib.invalidate_caches()
    kind_registry.packages.cache_clear()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder where packages can be installed. Afterwards none of them was ever there."""
    before = set(sys.modules)
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    forget()
    yield folder
    forget()
    for name in set(sys.modules) - before:
        if name.startswith(("planner_translation", "broken")):
            del sys.modules[name]


@pytest.fixture
def job_file(site, tmp_path, monkeypatch):
    """The job of the document, with its package installed and its data in the working directory."""
    files = install_example(site, "A kind of data")
    forget()
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "translation.yaml").write_text(files["translation.yaml"])
    monkeypatch.chdir(tmp_path)
    return tmp_path / "translation.yaml"


def sample_of(job, row=1):
    return prompt_and_completion(open_dataset(job.data, job.model).sample(row))


def test_its_rows_become_samples(job_file):
    """In both directions, also on demand and in a mixture, which all rows have."""
    assert sample_of(read_job(job_file)) == (b"\0word 1 = ", b"Wort 1\0")
    for settings in ([], ["data.tokenize=on_demand"], ["data={kind: translation, mixture: [words.jsonl]}"]):
        found = read_job(job_file, [*settings, "data.into=en"])
        assert sample_of(found) == (b"\0Wort 1 = ", b"word 1\0")
    assert found == read_job_of(dump_job(found), job_file)


def read_job_of(text, job_file):
    job_file.with_name("written.yaml").write_text(text)
    return read_job(job_file.with_name("written.yaml"))


def test_other_code_makes_other_samples(job_file, site, tmp_path, monkeypatch):
    """The cache of samples notices a new version of the package."""
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sample_cache, "LEAST_BYTES", 0)
    job = read_job(job_file)
    assert sample_of(job) == (b"\0word 1 = ", b"Wort 1\0")
    code = site / "planner_translation" / "rows.py"
    code.write_text(code.read_text().replace('" = "', '" means "'))
    del sys.modules["planner_translation.rows"]
    importlib.invalidate_caches()
    assert sample_of(job) == (b"\0word 1 means ", b"Wort 1\0")


def test_it_is_in_the_schema_and_in_errors(job_file):
    """As planner's own kinds."""
    jsonschema.validate(read_job(job_file).model_dump(mode="json", by_alias=True), job_schema())
    with pytest.raises(
        JobError, match=r"objective dpo does not learn from data.kind translation. Write data.kind pairs"
    ):
        read_job(job_file, ["objective=dpo"])
    with pytest.raises(JobError, match=r"Write data.kind text or jsonl or tokens or chat or translation"):
        read_job(job_file, ["data.kind=pairs", "objective=sft"])
    job_file.with_name("words.jsonl").write_text('{"en": "a"}\n')
    job = read_job(job_file)
    with pytest.raises(DataError, match=r"words.jsonl:1: the keys en, and data.kind translation takes one of: en, de"):
        open_dataset(job.data, job.model)


@pytest.mark.fsdp
def test_workers_train_on_it(job_file):
    """Two and three of them compute what one does, and the audit is clean."""
    job = read_job(job_file)
    with LocalWorkers(3) as workers:
        for world_size in (1, 2, 3):
            workers.run(run_job, world_size, job, str(job_file.parent / str(world_size)))
    one, two, three = (records(job_file.parent / name) for name in "123")
    assert [[step["checksum"] for step in steps] for steps in (two, three)] == [[step["checksum"] for step in one]] * 2
    for steps in (two, three):
        assert [step["loss"] for step in steps] == pytest.approx([step["loss"] for step in one], rel=1e-4)
    for name in "123":
        found = audit(RunFolder(Storage(str(job_file.parent / name))))
        assert found.clean, found.findings


SECTION = """
from typing import Literal
from planner.job import *

class Broken(RowsData):
    kind: Literal["broken"]

SPEC = DataSpec(config=Broken, samples="texts", open="broken:opened", make_batch="broken:gone")

def opened(data, model, progress):
    raise ZeroDivisionError("of its own")

class Nothing(RowsData):
    kind: Literal["nothing"]

NOTHING = DataSpec(config=Nothing, samples="texts", open="broken:returned", make_batch="broken:gone")

def returned(data, model, progress):
    return None
"""


def test_a_broken_package_harms_only_jobs_that_name_it(job_file, site):
    """They get one error with its name."""
    install(
        site,
        "planner.data_kinds",
        {"broken": "broken:SPEC", "nothing": "broken:NOTHING", "lost": "nowhere:SPEC"},
        {"broken": SECTION},
    )
    forget()
    assert sample_of(read_job(job_file))
    job = read_job(job_file, ["data.kind=broken"])
    with pytest.raises(DataKindUnavailable, match=r"kind of data broken: broken:opened: ZeroDivisionError: of its own"):
        open_dataset(job.data, job.model)
    job = read_job(job_file, ["data.kind=nothing"])
    with pytest.raises(DataKindUnavailable, match=r"broken:returned returned NoneType, which is no SampleDataset"):
        open_dataset(job.data, job.model)
    with pytest.raises(JobError, match=r"lost of planner-extra 1.0 cannot be used \(ModuleNotFoundError"):
        read_job(job_file, ["data.kind=lost"])
    with pytest.raises(DataKindUnavailable, match="lost of planner-extra"):
        DATA_KINDS.require_all()


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"samples": ""}, "samples is empty"),
        ({"open": "module.function"}, "write module:name instead of 'module.function'"),
        ({"make_batch": "a"}, "write module:name instead of 'a'"),
        ({"config": RowsData}, 'kind must be Literal\\["NAME"\\]'),
        ({"config": int}, "config must be a class of planner.job.Data, found <class 'int'>"),
    ],
)
def test_facts_that_make_no_sense_are_refused(facts, says):
    """At the birth of the spec, so a package's own tests see it."""
    usual = {"config": DATA_KINDS.ours["chat"].config, "samples": "texts", "open": "a:b", "make_batch": "a:b"}
    with pytest.raises(ValueError, match=says):
        DataSpec(**usual | facts)
