"""Chooses the commit to resume from: the newest valid one, whose job and device are compared with this launch's."""

from dataclasses import dataclass
from functools import partial

from planner.errors import ResumeRefused
from planner.events.event import Event
from planner.events.resuming import ChangeAccepted, JobUnknown
from planner.job.step_schedule import moved_schedule
from planner.provenance.data_facts import evaluation_changes
from planner.provenance.identity import (
    DEVICE,
    MODEL,
    job_changes,
    require_same,
    require_same_first_weights,
    require_same_model,
)
from planner.store.jobs import job_digest
from planner.store.newest import Newest, named_and_lost, newest_of, require_good
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder
from planner.train.checkpoints import checkpoint
from planner.train.setup import Launch, Setup
from planner.train.world import World


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The commit to resume from."""

    newest: str
    """name of the newest commit in the folder, valid or not. Empty if there is none"""
    manifest: Manifest | None
    """of the commit to resume from. None for a new run"""
    sha256: str
    """digest of the manifest. Empty for a new run"""
    changed: list[Event]
    """commits that were passed over or lost, and changes of the job since the commit"""

    @property
    def parent(self) -> str:
        """Name of the commit to resume from. Empty for a new run."""
        return self.manifest.name if self.manifest else ""


def choose(launch: Launch, world: World, run: RunFolder, setup: Setup) -> Choice:
    """Find the newest valid commit, and compare its job with this one.

    Raises:
        PlannerError: on every worker, if there are commits but none is valid, or the run's identity differs.
    """
    names, lost = world.from_first(lambda: named_and_lost(run))
    found = _newest_whole(world, run, names, lost)
    manifest = found.manifest
    changes = world.agree(lambda: compare(launch, run, setup, manifest))
    newest = names[0] if names else ""
    sha256 = world.from_first(lambda: run.manifest_digest(manifest.name)) if manifest else ""
    return Choice(newest=newest, manifest=manifest, sha256=sha256, changed=[*found.not_used, *changes])


def _newest_whole(world: World, run: RunFolder, names: list[str], lost: list[str]) -> Newest:
    """The newest commit whose files are whole, and the newer ones that are lost or damaged.

    Raises:
        NewerFormat: on every worker, if a newer commit was written by another version of planner.
        ManifestMismatch: on every worker, if a whole manifest is not the one that the ledger records.
        Unreachable: on every worker, if a newer commit cannot be read now.
        StoreError: on every worker, if there are commits but none is whole.
    """

    def whole(name: str) -> Manifest:
        manifest = world.agree(partial(run.manifest, name))
        world.from_first(partial(run.require_recorded, name))
        checkpoint.check_files(world, run, manifest)
        return manifest

    newest = newest_of(names, whole, lost)
    require_good(run, newest)
    return newest


def compare(launch: Launch, run: RunFolder, setup: Setup, manifest: Manifest | None) -> list[Event]:
    """An event for each difference from the job, the model's files and the device of the commit.

    Raises:
        ResumeRefused: the run's identity, the model's files or, for `bitwise`, the device differs, and the user has
            not accepted that.
    """
    if manifest is None:
        return []
    # An equal job is not read from its file, which may be torn and is written again.
    same = manifest.job_digest == job_digest(launch.job)
    before = launch.job if same else run.job_if_known(manifest.job_digest)
    changes = job_changes(before, launch.job) if before else []
    require_same_first_weights(manifest.identity, setup.identity, launch.job, run.storage.url)
    differing: list[Event] = [
        *require_same(
            manifest.identity,
            setup.identity,
            changes,
            launch.accept,
            run.storage.url,
            facts=(manifest.facts, setup.facts),
        ),
        *changes,
        *evaluation_changes(manifest.facts, setup.facts),
    ]
    differing += require_same_model(str(manifest.facts.get(MODEL, "")), setup.model, launch.accept, run.storage.url)
    differing += _compare_devices(launch, run, setup, manifest)
    if before is None:
        return [*differing, JobUnknown(job_digest=manifest.job_digest)]
    moved = moved_schedule(before, launch.job, setup.order.num_samples, manifest.step, manifest.total_steps)
    return [*differing, moved] if moved else differing


def _compare_devices(launch: Launch, run: RunFolder, setup: Setup, manifest: Manifest) -> list[Event]:
    before = str(manifest.facts.get("device", ""))
    if not (before and setup.device) or before == setup.device:
        return []
    change = ChangeAccepted(field=DEVICE, before=before, now=setup.device)
    if DEVICE not in launch.accept:
        raise ResumeRefused(
            f"{run.storage.url}: a bitwise run depends on the device and on torch, which differ ({DEVICE}: {before} -> "
            f"{setup.device}). Resume on "
            f"the same kind of machine with the same torch, or accept other bits with --accept {DEVICE}"
        )
    return [change]
