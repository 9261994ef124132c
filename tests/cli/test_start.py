"""What a dry run lets through, the run does not refuse before its first step. What it refuses, the run refuses alike.

Each place is tried by `planner run --dry-run` and by `planner run`, whose workers are one worker in this process.
"""

import contextlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from planner.runner import execute
from planner.store.lease import DriverLease
from planner.store.lease_record import lease_name, this_driver
from planner.store.records import seal
from planner.store.storage import Storage

FOLDERS = ("checkpoints", "drivers", "generations", "held", "jobs", "ledger", "manifests", "ray")


@dataclass
class Place:
    """A folder of the test, a run of four steps in it, and what a case does to them."""

    tmp_path: Path
    run: Path
    monkeypatch: pytest.MonkeyPatch
    stack: contextlib.ExitStack
    settings: list[str] = field(default_factory=list)
    """of the job. checkpoint.path is `run` if they do not say otherwise"""

    def mounted(self, folder, *options):
        """Mount something on a folder until the end of the test. Skips it where nobody may mount."""
        if subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False).returncode:
            pytest.skip("nothing can be mounted here")
        self.stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)

    def read_only(self, folder):
        """Make a folder read-only, also for root."""
        self.mounted(folder, "--bind", str(folder))
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)

    def at(self, path):
        """Have the job's run elsewhere."""
        self.settings.append(f"checkpoint.path={path}")


PLACES, GOOD = {}, set()


def place(function):
    """A case in which a start is refused."""
    PLACES[function.__name__] = function
    return function


def good(function):
    """A case that only looks odd."""
    GOOD.add(function.__name__)
    return place(function)


@good
def a_run(_place):
    """Nothing is broken."""


@good
def no_run_yet(place):
    place.at("fresh")


@good
def missing_parents(place):
    place.at("a/b/c/fresh")


@place
def read_only(place):
    place.read_only(place.run)


@place
def read_only_above(place):
    (place.tmp_path / "above").mkdir()
    place.read_only(place.tmp_path / "above")
    place.at("above/fresh")


@place
def full(place):
    (disk := place.tmp_path / "disk").mkdir()
    place.mounted(disk, "-t", "tmpfs", "-o", "size=64k,mode=700", "none")
    with contextlib.suppress(OSError), (disk / "hog").open("wb", buffering=0) as stream:
        while stream.write(bytes(4096)):
            pass
    place.at("disk/fresh")


@place
def wrong_owner(place):
    """Root may write everywhere, so the system call refuses."""
    link = os.link

    def refusing(source, target, **more):
        if "fresh" in str(target):
            raise PermissionError(13, "Permission denied", str(source), None, str(target))
        link(source, target, **more)

    place.monkeypatch.setattr("os.link", refusing)
    place.at("fresh")


@place
def leased_by_a_living_driver(place):
    place.stack.enter_context(DriverLease(Storage(str(place.run)), "other", print))


@good
def leased_on_another_machine(place):
    elsewhere = this_driver("other", beat_s=0.01).model_copy(update={"place": "another boot"})
    Storage(str(place.run)).write(lease_name(9), seal(elsewhere))


@good
def a_torn_lease(place):
    place.monkeypatch.setattr("planner.store.lease._BEAT_S", 0.01)
    (place.run / "drivers").mkdir(exist_ok=True)
    (place.run / lease_name(9)).write_text("{")


@place
def in_memory(place):
    place.at("memory://x")


@place
def in_proc(place):
    place.at("/proc/x")


@place
def below_a_device(place):
    place.at("/dev/null/x")


@place
def below_a_file(place):
    (place.tmp_path / "file").write_text("x")
    place.at("file/run")


@place
def resources_that_ray_reserves(place):
    place.settings.append("workers.resources={CPU: 1}")


@good
def resources_that_no_node_has(place):
    """The local cluster makes them up."""
    place.settings.append("workers.resources={odd: 3}")


@place
def more_workers_than_places(place):
    place.settings += ["workers.min=60", "workers.max=64", "batch.global=64"]
    place.at("fresh")


@place
def a_sample_above_max_tokens(place):
    """Windows of sixteen bytes."""
    place.settings.append("batch.max_tokens=15")


@good
def samples_within_max_tokens(place):
    place.settings.append("batch.max_tokens=16")


@place
def no_name(place):
    (place.run / "run.json").unlink()


@place
def a_torn_name(place):
    (place.run / "run.json").write_text("{")


@good
def a_torn_commit(place):
    max((place.run / "manifests").iterdir()).write_text("{")


@place
def no_files_of_commits(place):
    shutil.rmtree(place.run / "checkpoints")


@place
def a_ledger_of_another_version(place):
    newest = max((place.run / "ledger").iterdir())
    newest.write_bytes(newest.read_bytes().replace(b'"format":', b'"format":9', 1))


@place
def a_generation_of_another_version_without_a_commit(place):
    newest = max((place.run / "ledger").iterdir())
    newest.with_name("000003.jsonl").write_bytes(newest.read_bytes().replace(b'"format":', b'"format":9', 1))


@good
def a_ledger_of_another_version_before_the_newest(place):
    oldest = min((place.run / "ledger").iterdir())
    oldest.write_bytes(oldest.read_bytes().replace(b'"format":', b'"format":9', 1))


@place
def a_lease_of_another_version(place):
    elsewhere = this_driver("other", beat_s=0.01).model_copy(update={"format": 99})
    Storage(str(place.run)).write(lease_name(9), seal(elsewhere))


@place
def a_name_of_another_version(place):
    name = place.run / "run.json"
    name.write_bytes(name.read_bytes().replace(b'"format":', b'"format":9', 1))


@good
def a_torn_ledger(place):
    newest = max((place.run / "ledger").iterdir())
    newest.write_bytes(newest.read_bytes()[:100])


@good
def no_ledger(place):
    shutil.rmtree(place.run / "ledger")


@good
def no_jobs(place):
    shutil.rmtree(place.run / "jobs")


@place
def a_torn_job(place):
    for file in (place.run / "jobs").iterdir():
        file.write_text("{")


@good
def a_torn_claim(place):
    max((place.run / "generations").iterdir()).write_text("{")


@good
def a_claim_by_a_newer_generation(place):
    newest = max((place.run / "generations").iterdir())
    shutil.copy(newest, newest.with_name("000099.json"))


@good
def odd_names(place):
    for folder in FOLDERS:
        (place.run / folder).mkdir(exist_ok=True)
        (place.run / folder / "odd").write_text("x")


@good
def a_failure_and_a_status_that_are_torn(place):
    for name in ("failure.json", "status.json", "caps.json"):
        (place.run / name).write_text("{")


@good
def folders_in_the_place_of_files(place):
    for name in ("failure.json", "status.json", "caps.json"):
        (place.run / name).mkdir()


@good
def after_a_finished_run(place):
    place.settings.append(f"after={place.run}")
    place.at("fresh")


@good
def after_a_step(place):
    place.settings.append(f'after={{run: "{place.run}", step: 2}}')
    place.at("fresh")


@place
def after_a_step_without_a_commit(place):
    place.settings.append(f'after={{run: "{place.run}", step: 3}}')
    place.at("fresh")


@place
def after_another_manifest(place):
    place.settings.append(f'after={{run: "{place.run}", manifest: "{"0" * 64}"}}')
    place.at("fresh")


@place
def after_a_run_that_goes_on(place):
    place.stack.enter_context(DriverLease(Storage(str(place.run)), "other", print))
    after_a_finished_run(place)


@place
def after_a_run_without_its_last_commit(place):
    max((place.run / "manifests").iterdir()).write_text("{")
    after_a_finished_run(place)


@place
def after_a_run_without_files(place):
    shutil.rmtree(place.run / "checkpoints")
    after_a_finished_run(place)


@place
def after_no_run(place):
    place.settings.append("after=nowhere")
    place.at("fresh")


@place
def after_itself(place):
    place.settings.append(f"after={place.run}")


@place
def after_another_model(place):
    after_a_finished_run(place)
    place.settings.append("model.layers=2")


@place
def after_a_run_that_it_did_not_begin_from(place):
    """The run was made without `after`."""
    shutil.copytree(place.run, place.tmp_path / "earlier")
    place.settings.append("after=earlier")


def _broken_folder(name, kind):
    def function(place):
        folder = place.run / name
        if kind == "read-only":
            folder.mkdir(exist_ok=True)
            place.read_only(folder)
            return
        if folder.exists():
            shutil.move(folder, place.tmp_path / f"kept-{name}")
        if kind == "a file":
            folder.write_text("x")
        else:
            (place.tmp_path / f"kept-{name}").mkdir(exist_ok=True)
            folder.symlink_to(place.tmp_path / f"kept-{name}")

    return function


PLACES |= {
    f"{name} is {kind}": _broken_folder(name, kind)
    for name in FOLDERS
    for kind in ("a file", "read-only", "a link out of the run")
}


@pytest.fixture
def reached(tmp_path, monkeypatch):
    """Have a run train with one worker in this process, without a cluster. Gets the steps that begin."""
    from planner.train.generation import train
    from planner.train.hooks import Hooks
    from planner.train.world import cpu_device

    steps = []

    def train_on_ray(launch, *_settings, **_more):
        import torch.distributed as dist

        def should_stop(step):
            steps.append(step)
            return len(steps) > 1

        (tmp_path / "rendezvous").unlink(missing_ok=True)
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
        try:
            Storage(launch.url).make_folder("ray")
            train(launch, cpu_device, Hooks(should_stop=should_stop))
        finally:
            dist.destroy_process_group()
        raise KeyboardInterrupt

    def cluster(*_arguments):
        return contextlib.nullcontext(SimpleNamespace(address="127.0.0.1:1"))

    def nothing(*_arguments, **_more):
        return contextlib.nullcontext(SimpleNamespace(watching=None))

    monkeypatch.setattr(execute, "embedded", cluster)
    for name in ("DriverWatch", "_connected", "MetricsExporter", "StatusWriter"):
        monkeypatch.setattr(execute, name, nothing)
    monkeypatch.setattr(execute, "rented_nodes", list)
    monkeypatch.setattr("planner.dispatch.connection.metrics_url", str)
    monkeypatch.setattr("planner.dispatch.launch.train_on_ray", train_on_ray)
    return steps


MOUNTED = {"read_only", "read_only_above", "full", *(f"{name} is read-only" for name in FOLDERS)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.process if name in MOUNTED else ()) for name in PLACES]
)
def test_a_dry_run_and_a_run_agree(cli, recorded, tmp_path, monkeypatch, reached, name):
    """Both are refused with one text, or the run begins its first step."""
    run = shutil.copytree(recorded.run, tmp_path / "run")
    with contextlib.ExitStack() as stack:
        place = Place(tmp_path, run, monkeypatch, stack, [f"checkpoint.path={run}", "train.steps=9"])
        PLACES[name](place)
        arguments = ["run", recorded.job, "--nodes", "1", *(a for each in place.settings for a in ("--set", each))]
        dry, real = cli(*arguments, "--dry-run"), cli(*arguments)
        assert (dry.code == 0) == (name in GOOD), dry.err
        if dry.code:
            assert (real.code, real.out, real.err) == (dry.code, dry.out, dry.err)
            assert reached == []
            assert dry.err.count("\n") == 1
        else:
            assert len(reached) == 2, real.err  # the first step was done


def test_the_samples_of_a_finished_run_need_not_fit(cli, recorded):
    """Nothing will be computed. A run that goes on is refused."""
    command = ("run", recorded.job, "--nodes", "1", "--set", "batch.max_tokens=15")
    finished, longer = cli(*command), cli(*command, "--set", "train.steps=9")
    assert (finished.code, "finished at step 4" in finished.out) == (0, True), finished.err
    assert "batch.max_tokens: row 0 of data (the first is row 0) has 16 tokens" in longer.err


def test_limits_of_tokens_are_in_the_ledger(cli, recorded, tmp_path, reached):
    """In the header of the generation that has them. The audit finds them there."""
    run = shutil.copytree(recorded.run, tmp_path / "run")
    limits = ("batch.max_tokens=16", "batch.attention_at=96")
    settings = (f"checkpoint.path={run}", "train.steps=9", *limits)
    cli("run", recorded.job, "--nodes", "1", *(part for each in settings for part in ("--set", each)))
    assert len(reached) == 2
    headers = [json.loads(file.read_text().partition("\n")[0])["record"] for file in sorted(run.glob("ledger/*"))]
    found = [(each.get("max_tokens"), each.get("attention_at")) for each in headers]
    assert found == [(None, None)] * (len(headers) - 1) + [(16, 96)]
    assert not {"max_tokens", "attention_at"} & headers[0].keys()
    audited = cli("audit", run)
    assert audited.code == 0, audited.out
