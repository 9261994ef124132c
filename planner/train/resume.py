"""Claims a generation: finds what to resume from, in memory or in the store, and takes the next generation number."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, takewhile

from planner.errors import ManifestMismatch, NewerFormat, PlannerError, StoreError, TrainingFailed
from planner.store.commit_names import commit_of, rank
from planner.store.jobs import job_digest
from planner.store.newest import newest_named, readable
from planner.store.records import NO_HEAD, Manifest
from planner.store.run_folder import RunFolder
from planner.story.earlier import num_recorded
from planner.train.background import BackgroundWork
from planner.train.checkpoints.from_memory import HeldStep, MemoryLost
from planner.train.choose_commit import choose, compare
from planner.train.resume_point import Claim, ResumePoint
from planner.train.setup import Launch, Setup
from planner.train.world import World

# A launch stops if so many worker groups in a row die before their first commit. Lost nodes and resizes count too, so
# the number is high. The elastic controller stops crash loops much sooner.
MAX_FRUITLESS_GENERATIONS = 30
# Copies in memory move the beginning of a group on, though nothing becomes durable. Twenty planned changes and ten
# deaths within one commit interval are no crash loop.
MAX_WITHOUT_COMMIT = 100
_STEP_DIGITS = 12  # of a commit's name: its step


def claim(launch: Launch, world: World, run: RunFolder, setup: Setup, held: HeldStep | None) -> Claim:
    """Choose what to resume from, and claim the generation: from memory if nothing newer is durable.

    Raises:
        PlannerError: on every worker, if the run's identity differs, or the launch makes no progress.
    """
    if held is not None:
        name = held.manifest.name
        durable = world.from_first(lambda: _durable(run, name))
        if not durable.newest or rank(name) >= rank(durable.newest):
            return _claim_held(launch, world, run, setup, held, durable)
    return _claim_durable(launch, world, run, setup)


@dataclass(frozen=True, kw_only=True)
class _Durable:
    """What is durable beside a held step."""

    newest: str
    """name of the newest commit, whole or not. Empty if there is none"""
    manifest: Manifest | None
    """of the held step, if it is durable under its own name"""
    sha256: str
    """digest of that manifest"""
    before: int
    """the step of the newest commit before the held step. 0 if there is none"""


def _durable(run: RunFolder, held: str) -> _Durable:
    """Look up the commits beside the held step of this name. For rank 0.

    Raises:
        NewerFormat, ManifestMismatch: the manifest of the held step was written by another version, or replaced.
    """
    names = run.commits()
    newest = names[-1] if names else ""
    # An earlier generation's commit of a later step is not before it: it was passed over, because it is damaged.
    steps = (commit_of(name)[0] for name in reversed(names) if rank(name) < rank(held))
    before = next((step for step in steps if step < commit_of(held)[0]), 0)
    manifest, sha256 = None, ""
    if newest == held:
        try:
            manifest, sha256 = readable(run, held), run.manifest_digest(held)
        except (NewerFormat, ManifestMismatch):
            raise
        except StoreError:  # torn. Memory has the step whole
            manifest, sha256 = None, ""
    return _Durable(newest=newest, manifest=manifest, sha256=sha256, before=before)


def _claim_durable(launch: Launch, world: World, run: RunFolder, setup: Setup) -> Claim:
    """Find the newest valid commit, and claim the generation that resumes from it."""
    run_id = world.from_first(lambda: run.ensure_identity().run_id)
    choice = choose(launch, world, run, setup)
    world.from_first(lambda: _require_progress(run, launch.launch_id, choice.parent, choice.parent))
    generation = world.from_first(lambda: _claim_number(launch, run, choice.parent, choice.parent))
    # Another driver may have committed between the choice and the claim. After the claim, it cannot commit.
    if world.from_first(lambda: newest_named(run)) != choice.newest:
        choice = choose(launch, world, run, setup)
    manifest = choice.manifest
    start = ResumePoint(
        generation=generation,
        run_id=run_id,
        step=manifest.step if manifest else 0,
        cursor=manifest.cursor if manifest else 0,
        parent=choice.parent,
        parent_sha256=choice.sha256,
        head=manifest.ledger_head if manifest else NO_HEAD,
        changed=tuple(choice.changed),
        launch_id=launch.launch_id,
        launched_s=launch.launched_s,
        durable_step=manifest.step if manifest else 0,
        num_recorded=world.from_first(lambda: _num_recorded(run, generation)),
    )
    return Claim(start=start, manifest=manifest, held=None, finish=lambda: start)


def _claim_held(launch: Launch, world: World, run: RunFolder, setup: Setup, held: HeldStep, durable: _Durable) -> Claim:
    """Resume from memory. Rank 0 claims the generation in a thread, while all workers build and load the model."""
    manifest: Manifest = durable.manifest or held.manifest
    is_held = durable.manifest is None
    changes = world.agree(lambda: compare(launch, run, setup, manifest))
    start = ResumePoint(
        generation=0,
        run_id=held.whole.run_id,
        step=manifest.step,
        cursor=manifest.cursor,
        parent=manifest.name,
        parent_sha256=durable.sha256,
        head=manifest.ledger_head,
        changed=tuple(changes),
        launch_id=launch.launch_id,
        launched_s=launch.launched_s,
        is_held=is_held,
        durable_step=durable.before if is_held else manifest.step,
        has_job=manifest.job_digest == job_digest(launch.job),
    )
    claiming = _claiming(launch, run, held, durable) if world.rank == 0 else None

    def finish() -> ResumePoint:
        taken = world.from_first(lambda: claiming.result() if claiming else _Taken())
        if taken.lost:
            raise MemoryLost(taken.lost)
        return replace(
            start,
            generation=taken.generation,
            parent_sha256=durable.sha256 or taken.written,
            num_recorded=taken.num_recorded,
        )

    return Claim(start=start, manifest=manifest, held=held, finish=finish)


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """What the claim of a generation that loads from memory found out."""

    generation: int = 0
    written: str = ""
    """digest of the held step's manifest, if the claim wrote it"""
    num_recorded: int = 0
    lost: str = ""
    """why the copies in memory cannot be used. Empty if they can"""


def _claiming(launch: Launch, run: RunFolder, held: HeldStep, durable: _Durable) -> BackgroundWork[_Taken]:
    """Claim a generation in a thread.

    The storage answers while the workers build their model, so that no resize waits for it.

    Args:
        launch: takes the generation.
        run: the run's folder.
        held: the step.
        durable: what is durable beside it.
    """

    def work(_moved: Callable[[], None]) -> _Taken:
        name = held.manifest.name
        with ThreadPoolExecutor(1) as pool:  # beside what else is only read
            identity = pool.submit(run.identity)
            _require_progress(run, launch.launch_id, name, durable.newest)
        if (run_id := identity.result().run_id) != held.whole.run_id:
            lost = f"{run.storage.url} has run {run_id}, and the copies in memory are of {held.whole.run_id}"
            return _Taken(lost=lost)
        generation = _claim_number(launch, run, name, durable.newest)
        # As for a commit: until the claim, another driver may have committed. An older group's last commit may also
        # have become durable, but that is of an earlier step.
        if (now := newest_named(run)) and rank(now) > rank(name):
            return _Taken(lost=f"commit {now} is newer than {held.text}")
        written = "" if durable.manifest else run.put_held(held.manifest, writer=generation)
        return _Taken(generation=generation, written=written, num_recorded=_num_recorded(run, generation))

    return BackgroundWork(work, _storage_error)


def _storage_error(error: Exception) -> PlannerError:
    if isinstance(error, PlannerError):
        return error
    return TrainingFailed(f"the generation cannot be claimed: {type(error).__name__}: {error}")


def _num_recorded(run: RunFolder, generation: int) -> int:
    """Steps of the run on record before this generation. 0 if they cannot be read: no run stops for this count."""
    with suppress(StoreError):
        return num_recorded(run, before=generation)
    return 0


def _claim_number(launch: Launch, run: RunFolder, parent: str, durable: str) -> int:
    """Claim a generation on rank 0. `durable` is the newest commit's name."""
    claim = {"launch": launch.launch_id, "parent": parent, "durable": durable, "host": socket.gethostname()}
    return run.claim_generation(claim)


def _require_progress(run: RunFolder, launch_id: str, parent: str, durable: str) -> None:
    """Stop a crash loop: a launch that begins at the same step again and again, or commits nothing for long.

    The same step may have several names: a generation that resumed from memory commits it under its own.

    Raises:
        TrainingFailed: `MAX_FRUITLESS_GENERATIONS` generations of this launch have begun at this step, or
            `MAX_WITHOUT_COMMIT` have begun since the newest commit.
    """
    here = (launch_id or None, durable)  # without a launch, nothing is counted, but the newest claim must be readable
    since_commit = takewhile(lambda claim: (claim.get("launch", ""), claim.get("durable")) == here, run.claims())
    claims = list(islice(since_commit, MAX_WITHOUT_COMMIT))
    at_step = list(takewhile(lambda claim: claim.get("parent", "")[:_STEP_DIGITS] == parent[:_STEP_DIGITS], claims))
    for found, most, what in (
        (at_step, MAX_FRUITLESS_GENERATIONS, "died before their first commit"),
        (claims, MAX_WITHOUT_COMMIT, "ended, and nothing became durable"),
    ):
        if len(found) >= most:
            raise TrainingFailed(
                f"{run.storage.url}: {len(found)} worker groups in a row {what}, all since {durable or 'the start'}. "
                "Look at the workers' logs, commit more often, then run again"
            )
