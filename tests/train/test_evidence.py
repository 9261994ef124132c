"""What a run leaves behind is held against its ledger before anybody goes on from it; and each format has a number."""

import functools
import itertools
import json
import re
import shutil
from pathlib import Path

import pytest
from earlier import FORMATS, unpack
from forging import PLACES, forged, reseal, set_format
from verifiers import run_script

from planner.base import format_versions
from planner.errors import ManifestMismatch, NewerFormat, PlanError, ResumeRefused, StoreError
from planner.job import Job
from planner.plan import layout, make_plan
from planner.plan.layout import Balanced, Bitwise
from planner.provenance.audit import audit
from planner.provenance.lineage import header_of
from planner.store.ledger import LedgerWriter
from planner.store.newest import newest_commit
from planner.store.records import NO_HEAD, CommitRecord, chained
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.store.survey import survey
from planner.train import journal, setup
from planner.train.export import commit_at
from planner.train.generation import train
from planner.train.hooks import Hooks
from planner.train.setup import Launch
from planner.train.world import cpu_device

pytestmark = pytest.mark.usefixtures("process_group")

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "corpus.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 6)
    return path


def make_job(corpus, **sections):
    """Six steps of five samples, a commit after every second one."""
    job = {
        "name": "test",
        "model": {"kind": "gpt", "layers": 1, "width": 8, "heads": 1, "context": 8},
        "data": {"kind": "text", "path": str(corpus)},
        "batch": {"global": 5, "max_micro": 2},
        "train": {"steps": 6, "optimizer": {"kind": "adamw", "lr": 1e-3}},
        "checkpoint": {"every": 2},
        "workers": {"gpus": 0},
    }
    return Job.model_validate({**job, **{name: {**job.get(name, {}), **found} for name, found in sections.items()}})


def train_to(url, job, stop_at=None, accept=()):
    """One generation, stopped before step `stop_at`."""
    hooks = Hooks(should_stop=lambda step: stop_at is not None and step >= stop_at)
    return train(Launch(job=job, url=str(url), accept=frozenset(accept)), cpu_device, hooks)


def run_at(url):
    return RunFolder(Storage(str(url)))


@pytest.fixture(scope="module")
def healthy(corpus, tmp_path_factory):
    """Two generations, steps 0 to 3 and 3 to 6."""
    url = tmp_path_factory.mktemp("healthy") / "run"
    train_to(url, make_job(corpus), stop_at=3)
    train_to(url, make_job(corpus))
    assert audit(run_at(url)).clean
    return url


@pytest.fixture
def url(healthy, tmp_path):
    """A copy to harm."""
    return shutil.copytree(healthy, tmp_path / "run")


def manifest_file(url, name):
    return Path(url) / "manifests" / f"{name}.json"


class Interrupted(BaseException):
    """Ctrl-C, say."""


@pytest.mark.parametrize(
    ("part", "error"), [(0.5, Interrupted), (1, Interrupted), (1, StoreError)], ids=["half", "whole", "whole, and told"]
)
@pytest.mark.parametrize("number", [2, 5])
def test_nothing_stands_behind_an_append_that_did_not_return(corpus, tmp_path, monkeypatch, part, error, number):
    """An object store may have taken lines whose answer was lost; the same lines once more would break the chain."""
    url, numbers, append = tmp_path / "run", itertools.count(1), Storage.append

    def interrupted(storage, name, content):
        is_last = next(numbers) == number
        append(storage, name, content[: int(part * len(content))] if is_last else content)
        if is_last:
            raise error("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "append", interrupted)
        if error is StoreError:  # lines wait, as for an object store, and a commit hands them over
            patched.setattr(LedgerWriter, "write", lambda ledger, record: ledger._waiting.append(ledger._chain(record)))
        with pytest.raises(error):
            train_to(url, make_job(corpus, train={"steps": 4}, checkpoint={"every": 1}))
    train_to(url, make_job(corpus, train={"steps": 4}))
    assert not audit(run_at(url)).findings


# -- manifests


def test_a_replaced_commit_is_refused_before_any_step(url, corpus):
    """By the driver, by the workers and by an export; nothing is claimed and nothing written."""
    name = run_at(url).commits()[-1]
    before = manifest_file(url, name).read_bytes()
    reseal(manifest_file(url, name), lambda value: value.update(total_steps=7))
    job = make_job(corpus, train={"steps": 9})
    attempts = [
        lambda: newest_commit(run_at(url)),
        lambda: train_to(url, job),
        lambda: commit_at(run_at(url), None),
    ]
    for attempt in attempts:
        with pytest.raises(ManifestMismatch, match=rf"manifests/{name}\.json was replaced"):
            attempt()
    assert run_at(url).generations() == [1, 2]
    manifest_file(url, name).write_bytes(before)
    assert train_to(url, job).finished


@pytest.mark.parametrize(
    ("gone", "step", "says"),
    [
        ("manifests", None, "no manifest is left. Restore manifests/"),
        ("manifests", 4, "no manifest is left. Restore manifests/"),
        ("checkpoints", None, "commits is whole .* is missing.*Restore the files"),
    ],
)
def test_an_export_says_what_is_gone_of_a_run_that_had_commits(url, gone, step, says):
    """It advised to train until the first commit, which no start would do."""
    shutil.rmtree(Path(url) / gone)
    with pytest.raises(StoreError, match=says):
        commit_at(run_at(url), step)


def test_without_the_replaced_commit_the_run_goes_on(url, corpus):
    """As the message says: from the commit before, and the ledger says that one is lost."""
    name = run_at(url).commits()[-1]
    manifest_file(url, name).unlink()
    assert train_to(url, make_job(corpus)).finished
    header = json.loads((Path(url) / "ledger" / "000003.jsonl").read_text().splitlines()[0])["record"]
    assert header["step"] == 4
    assert any(f"commit {name} is lost" in change for change in header["changed"])


def test_a_commit_whose_record_was_never_written_is_gone_on_from(url, corpus):
    """Its worker was killed between the manifest and the record of it."""
    segment = Path(url) / "ledger" / "000002.jsonl"
    *lines, last = segment.read_text().splitlines()
    assert json.loads(last)["record"]["kind"] == "commit"
    segment.write_text("\n".join(lines) + "\n")
    assert audit(run_at(url)).clean
    assert train_to(url, make_job(corpus, train={"steps": 7})).finished
    assert audit(run_at(url)).clean


# -- learning rates and lengths


TRAINED = [
    {"steps": 6, "schedule": {"kind": "constant"}},
    {"steps": None, "epochs": 0.9, "schedule": {"kind": "linear", "warmup": "20%"}},
    {"steps": None, "examples": 33, "schedule": {"kind": "cosine", "warmup": "10 examples", "final_fraction": 0.1}},
    {"steps": 6, "schedule": {"kind": "cosine", "warmup": "0.2 epochs"}},
]


@pytest.mark.parametrize("train_section", TRAINED, ids=str)
def test_trained_rates_are_clean(corpus, tmp_path, train_section):
    """In the audit and in `docs/verify_run.py`. `test_held_lineage.py` has every schedule with every length."""
    train_to(tmp_path / "run", make_job(corpus, train=train_section))
    assert audit(run_at(tmp_path / "run")).clean
    code, output = run_script(tmp_path / "run")
    assert code == 0, output


# -- two layouts


class Reversed(Balanced):
    """The last worker has the first samples."""

    def _samples(self, rank, accumulation_step):
        return super()._samples(self.world_size - 1 - rank, accumulation_step)


@pytest.fixture
def second_layout(monkeypatch):
    """A version of planner whose plans are of layout 2, and which knows 1."""
    monkeypatch.setitem(layout.LAYOUTS, 2, {"balanced": Reversed, "bitwise": Bitwise})

    def use(version):
        for module in (setup, journal):
            monkeypatch.setattr(module, "make_plan", functools.partial(make_plan, layout_version=version))

    return use


def test_two_layouts_live_side_by_side(corpus, tmp_path, second_layout, monkeypatch):
    """A run begun by version 1 and ended by version 2 is audited by the arithmetic of each; unknown ones are named."""
    train_to(tmp_path, make_job(corpus), stop_at=3)
    second_layout(2)
    train_to(tmp_path, make_job(corpus))
    headers = [json.loads(file.read_text().splitlines()[0])["record"] for file in sorted(tmp_path.glob("ledger/*"))]
    assert [header["layout_version"] for header in headers] == [1, 2]
    assert headers[0]["plan_digest"] != headers[1]["plan_digest"]
    assert audit(run_at(tmp_path)).clean
    monkeypatch.delitem(layout.LAYOUTS, 2)
    with pytest.raises(PlanError, match="layout version 2, and this version of planner knows 1"):
        audit(run_at(tmp_path))


def test_a_plan_of_another_layout_than_on_record_is_found(url, second_layout):
    """The digest names the arithmetic."""
    second_layout(1)
    forged(url, lambda record: record.update(layout_version=2) if "layout_version" in record else None)
    assert "generation 1: its plan is not what layout version 2 gives" in audit(run_at(url)).findings


def test_bits_are_not_promised_across_layouts(corpus, tmp_path, second_layout):
    """What enters a forward pass may be cut another way."""
    job = make_job(corpus, batch={"equality": "bitwise"})
    train_to(tmp_path, job, stop_at=3)
    second_layout(2)
    with pytest.raises(ResumeRefused, match=r"layout 1 -> .*layout 2"):
        train_to(tmp_path, job)
    assert train_to(tmp_path, job, accept=["device"]).finished


# -- formats


def test_the_docs_list_every_format():
    """Name and number, as the code has them."""
    rows = re.findall(
        r"^\| `([a-z.]+)`[^|]*\| ([0-9]+) \|", (DOCS / "reference" / "stored-formats.md").read_text(), re.MULTILINE
    )
    assert {name: int(number) for name, number in rows} == format_versions.STORED


def in_file(file, change):
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


PLANTS = {
    **{place: PLACES[place] for place in ("run.json", "jobs", "ledger", "manifests")},
    "generations": lambda change: lambda url: in_file(url / "generations" / "000002.json", change),
}


@pytest.mark.parametrize("found", ["newer", None, True, "1"], ids=str)
@pytest.mark.parametrize("place", PLANTS)
def test_another_format_is_refused(url, corpus, place, found):
    """What a newer version wrote, and what was written before there were numbers: said, with what to do.

    `forging.py` asks the same of audits.
    """
    found = format_versions.STORED[place] + 1 if found == "newer" else found
    PLANTS[place](set_format(found))(url)
    reads = "1, 2, 3 and 4" if place == "ledger" else format_versions.STORED[place]
    formats = "formats" if place == "ledger" else "format"
    why = f"written before formats had numbers, and this version of planner reads {formats} {reads}"
    if found is not None:
        why = rf"written by another version of planner \(format {found}, this one reads {reads}\)"
    job = make_job(corpus, train={"steps": 7})
    with pytest.raises(NewerFormat, match=rf"{why}. Use the version that wrote it, or start again with another"):
        train_to(url, job)
    assert run_at(url).generations() == [1, 2]
    if place in {"ledger", "run.json"}:
        assert re.search(why, survey(str(url)).problem)


def test_the_format_harness_changes_nothing(url, corpus):
    """With the format that this version writes, all is well: what is refused above is the format."""
    for place, plant in PLANTS.items():
        plant(set_format(format_versions.STORED[place]))(url)
    assert audit(run_at(url)).clean
    assert train_to(url, make_job(corpus, train={"steps": 7})).finished


@pytest.mark.parametrize("number", FORMATS)
def test_a_run_of_an_earlier_version_resumes(tmp_path, monkeypatch, number):
    """Its next generation has a ledger of the newest format. The audit takes all of them."""
    url = unpack(number, tmp_path)
    monkeypatch.chdir(tmp_path)
    run = run_at(url)
    newest = run.manifest(run.commits()[-1])
    assert train_to(url, run.job(newest.job_digest)).finished
    found = audit(run)
    assert found.clean, found.findings
    assert [header_of(run, each).format for each in run.segments()] == [number, number, 4]
    assert run_script(url)[0] == 0


def test_a_run_whose_texts_are_all_x_resumes_as_any_other(url, corpus, monkeypatch):
    """A change is accepted by its field, and no reader needs a text."""
    monkeypatch.setattr(journal, "text_of", lambda _event: "x")
    job = make_job(corpus, train={"steps": 9, "seed": 1})
    train_to(url, job, stop_at=7, accept=["seed"])
    assert train_to(url, job).finished
    found = audit(run_at(url))
    assert found.clean, found.findings
    header = header_of(run_at(url), 3)
    assert set(header.changed) == {"x"}
    assert [(change.field, change.before, change.now) for change in header.accepted] == [("seed", "0", "1")]


def test_a_record_names_its_manifest():
    """A commit without a digest is none."""
    with pytest.raises(ValueError, match="sha256"):
        CommitRecord(step=1, name="000000000001-000001", seconds=1.0)
    assert chained(NO_HEAD, "") != NO_HEAD
