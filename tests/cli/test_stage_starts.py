"""A run that goes on from an earlier run (`after`), by the commands: its start, its resume, and what they tell."""

import json
import runpy
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from planner.errors import Unreachable
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage


@dataclass(frozen=True)
class Stages:
    """An earlier run of four steps, and two steps of one that began from it, with its job. A test may harm them."""

    earlier: Path
    run: Path
    job: Path


@pytest.fixture(scope="session")
def two_stages(recorded, tmp_path_factory):
    import torch.distributed as dist

    from planner.dispatch.launch import absolute
    from planner.files import read_job
    from planner.provenance.stage import pinned
    from planner.train.generation import train
    from planner.train.hooks import Hooks
    from planner.train.setup import Launch
    from planner.train.world import cpu_device

    folder = tmp_path_factory.mktemp("stages")
    shutil.copytree(recorded.run, folder / "earlier")
    job = pinned(absolute(read_job(recorded.job, [f"after={folder / 'earlier'}"]), str(folder / "run")))
    asked = []

    def after_two(_step):
        asked.append(None)
        return len(asked) > 2

    dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=0, world_size=1)
    try:
        train(Launch(job=job, url=str(folder / "run")), cpu_device, Hooks(should_stop=after_two))
    finally:
        dist.destroy_process_group()
    return folder


@pytest.fixture
def stages(two_stages, recorded, tmp_path):
    """Copies. The job names the earlier run by its place in `tmp_path`."""
    shutil.copytree(two_stages / "earlier", tmp_path / "earlier")
    shutil.copytree(two_stages / "run", tmp_path / "second")
    job = tmp_path / "second.yaml"
    text = recorded.job.read_text().replace(str(recorded.run), str(tmp_path / "second"))
    job.write_text(f"{text}\nafter: earlier\n")
    return Stages(tmp_path / "earlier", tmp_path / "second", job)


def digest_of(url):
    run = RunFolder(Storage(str(url)))
    return run.manifest_digest(run.commits()[-1])


def test_a_dry_run_names_the_commit(cli, stages):
    """Its step and the digest of its manifest, also as JSON."""
    new = ["run", stages.job, "--nodes", "1", "--dry-run", "--set", "checkpoint.path=fresh"]
    shown = cli(*new)
    assert f"tiny: a new run from step 4 of {stages.earlier} in " in shown.out
    assert f"after     step 4 of {stages.earlier}, manifest {digest_of(stages.earlier)}" in shown.out
    found = json.loads(cli(*new, "--json").out)
    assert found["after"] == f"step 4 of {stages.earlier}, manifest {digest_of(stages.earlier)}"


def test_a_resume_keeps_the_commit_that_the_run_began_from(cli, stages):
    """Even if the earlier run has moved, or went on since: the job only says `after: earlier`."""
    resume = ["run", stages.job, "--nodes", "1", "--dry-run", "--json"]
    assert json.loads(cli(*resume).out)["begins"] == "resuming at step 2 of 4"
    named = ["--set", f'after={{run: "{stages.earlier}", step: 2}}']
    refused = cli(*resume, *named)
    assert refused.code == 1
    assert "the run began from step 4 of" in refused.err
    assert "Write after.step: 4, or choose another checkpoint.path" in refused.err
    accepted = cli(*resume, *named, "--accept", "model")
    assert accepted.code == 0, accepted.err
    assert "step 2 of" in json.loads(accepted.out)["after"]


def test_a_resume_without_the_earlier_run(cli, stages):
    """Nothing of it is needed any more, and a note says that it was not looked at."""
    shutil.rmtree(stages.earlier)
    shown = cli("run", stages.job, "--nodes", "1", "--dry-run")
    assert shown.code == 0, shown.err
    assert f"after: step 4 of {stages.earlier} cannot be checked" in shown.out


def test_a_resume_after_a_run_that_was_made_again(cli, stages, recorded):
    """Another run is there now, or the same one with another commit in its place."""
    manifest = max((stages.earlier / "manifests").iterdir())
    manifest.write_bytes(manifest.read_bytes().replace(b'"sha256": "', b'"sha256": "0', 1))
    refused = cli("run", stages.job, "--nodes", "1", "--dry-run")
    assert refused.code == 1
    assert "another run is there now, without such a commit" in refused.err
    assert "--accept model" in refused.err
    shutil.rmtree(stages.earlier)
    shutil.copytree(recorded.run, stages.earlier)
    assert cli("run", stages.job, "--nodes", "1", "--dry-run").code == 0


def test_a_resume_without_after(cli, stages):
    """The identity has the digest."""
    refused = cli("run", stages.job, "--nodes", "1", "--dry-run", "--set", "after=null")
    assert refused.code == 1
    assert "the run was made with another model (after.manifest: " in refused.err


def test_show_and_report_name_the_commit(cli, stages, tmp_path):
    """With its digest."""
    commit = f"manifest {digest_of(stages.earlier)}"
    assert f"after      step 4 of {stages.earlier.parent}" not in cli("show", stages.run).out  # made elsewhere
    assert commit in cli("show", stages.run).out
    assert commit in json.loads(cli("show", stages.run, "--json").out)["after"]
    assert cli("report", stages.run, "--output", tmp_path / "report.html").code == 0
    assert commit in (tmp_path / "report.html").read_text()


def test_an_audit_says_whether_the_commit_is_there(cli, stages, two_stages):
    """It stays clean without it: the samples of this run do not depend on it."""
    audited = cli("audit", stages.run)
    assert audited.code == 0, audited.out
    assert (
        f"after         step 4 of {two_stages / 'earlier'}, manifest {digest_of(stages.earlier)} (it is there now)"
        in (audited.out)
    )
    assert "it is there now" in json.loads(cli("audit", stages.run, "--json").out)["after"]


@pytest.mark.parametrize("where", ["facts", "job"])
def test_an_audit_finds_another_commit_on_record(stages, where):
    """In the header, whose job has the digest, too."""
    from planner.provenance.step_comparison import _check_stage
    from planner.store.ledger import segment_name
    from planner.store.records import GenerationRecord

    run = RunFolder(Storage(str(stages.run)))
    line = json.loads((stages.run / segment_name(1)).read_text().splitlines()[0])
    header = GenerationRecord.model_validate_json(json.dumps(line["record"]))
    job = run.job(header.job_digest)
    assert _check_stage(header, job) == []
    if where == "facts":
        header = header.model_copy(update={"facts": {"after": {"run": "elsewhere", "step": 2}}})
    else:
        job = job.model_copy(update={"after": None})
    (finding,) = _check_stage(header, job)
    assert finding.startswith("generation 1: it began from step ")


def test_the_script_finds_another_commit_on_record(stages):
    """`docs/verify_run.py` compares the header with its job, too."""
    script = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "docs" / "verify_run.py")))
    header = script.read_header(stages.run, 1)
    job = script.read_job(stages.run, header["job_digest"])
    assert list(script.check_settings(header, {}, job, [])) == []
    header["facts"]["after"]["step"] = 2
    assert list(script.check_settings(header, {}, job, [])) == ["another earlier run is on record than its job has"]


def test_a_store_that_does_not_answer_is_no_other_run(cli, stages, monkeypatch):
    """The commit may well be there: the run goes on, and says that it was not looked at."""
    real = RunFolder.manifest_digest

    def away(self, name):
        if self.storage.url == str(stages.earlier):
            raise Unreachable("the disk does not answer")
        return real(self, name)

    monkeypatch.setattr(RunFolder, "manifest_digest", away)
    shown = cli("run", stages.job, "--nodes", "1", "--dry-run")
    assert shown.code == 0, shown.err
    assert "cannot be checked (the disk does not answer)" in shown.out


def test_a_relative_run_is_not_sent(cli, stages):
    """Its commits are large."""
    refused = cli("submit", stages.job, "--address", "http://127.0.0.1:1", "--set", "checkpoint.path=/shared/second")
    assert refused.code == 2
    assert "after: earlier is relative, and runs are not sent with a job" in refused.err
    assert "--set after.run=/shared/earlier" in refused.err


def test_a_run_cannot_go_on_from_itself(cli, recorded):
    """The text says so, and not that the model is another one."""
    refused = cli("run", recorded.job, "--nodes", "1", "--dry-run", "--set", f"after={recorded.run}")
    assert "is the run itself (checkpoint.path)" in refused.err


def test_an_audit_with_another_commit_on_record_is_not_clean(cli, stages, monkeypatch):
    """As if the header named none."""
    monkeypatch.setattr("planner.provenance.step_comparison.stage_of", lambda _facts: None)
    audited = cli("audit", stages.run)
    assert audited.code == 1
    assert "WRONG         generation 1: it began from no run on record, and its job says step 4 of" in audited.out
