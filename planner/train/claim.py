"""Where a generation begins: the newest commit that can be trusted, and a number of its own."""

import socket
from dataclasses import dataclass
from functools import partial

from planner.errors import StoreError, TrainingFailed
from planner.identity import job_changes, require_same
from planner.store.records import NO_HEAD, Identity, Manifest
from planner.store.run import Run
from planner.train import checkpoint
from planner.train.setup import Launch, Setup
from planner.train.world import World

# A launch whose worker groups die this often before their first commit would go on for ever without progress.
MAX_FRUITLESS_GENERATIONS = 10


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where this generation begins."""

    generation: int
    run_id: str
    step: int
    cursor: int
    parent: str
    head: str
    changed: tuple[str, ...]


def claim(launch: Launch, world: World, run: Run, setup: Setup) -> tuple[Start, Manifest | None]:
    """Find the newest commit that can be trusted, and claim the generation that goes on from it.

    Raises:
        PlannerError: on every worker: the run's identity differs, or no progress is being made.
    """
    run_id = world.from_first(lambda: run.ensure_identity().run_id)
    manifest, passed_over = _newest_valid(world, run)
    changed = world.agree(lambda: _compare(launch, run, setup.identity, manifest))
    parent = manifest.name if manifest else ""
    words = {"launch": launch.launch_id, "parent": parent, "host": socket.gethostname()}
    world.from_first(lambda: _require_progress(run, launch.launch_id, parent))
    generation = world.from_first(lambda: run.claim_generation(words))
    start = Start(
        generation=generation,
        run_id=run_id,
        step=manifest.step if manifest else 0,
        cursor=manifest.cursor if manifest else 0,
        parent=parent,
        head=manifest.ledger_head if manifest else NO_HEAD,
        changed=(*passed_over, *changed),
    )
    return start, manifest


def _newest_valid(world: World, run: Run) -> tuple[Manifest | None, list[str]]:
    """The newest commit whose files are whole, and what was wrong with newer ones.

    Raises:
        StoreError: on every worker, if there are commits and none is whole.
    """
    names = world.from_first(lambda: run.commits()[::-1])
    refused: list[str] = []
    for name in names:
        try:
            manifest = world.agree(partial(run.manifest, name))
            checkpoint.check_some_files(world, run, manifest)
        except StoreError as error:
            refused.append(f"commit {name} was passed over: {error}")
        else:
            return manifest, refused
    if refused:
        raise StoreError(
            f"{run.storage.url}: none of {len(names)} commits is whole; {refused[0]}; "
            "restore the files, or start again with another checkpoint.path"
        )
    return None, refused


def _compare(launch: Launch, run: Run, identity: Identity, manifest: Manifest | None) -> list[str]:
    """What differs from the job that the run was made with, in words.

    Raises:
        ResumeRefused: the run's identity differs, and the user has not named the difference.
    """
    if manifest is None:
        return []
    changes = job_changes(run.job(manifest.job_digest), launch.job)
    return require_same(manifest.identity, identity, changes, launch.accept, run.storage.url)


def _require_progress(run: Run, launch_id: str, parent: str) -> None:
    """Stop a crash loop: the same launch, from the same commit, again and again.

    Raises:
        TrainingFailed: `MAX_FRUITLESS_GENERATIONS` generations of this launch have died without a commit.
    """
    fruitless = 0
    for claim in run.newest_claims(MAX_FRUITLESS_GENERATIONS):
        if not launch_id or (claim.get("launch"), claim.get("parent")) != (launch_id, parent):
            break
        fruitless += 1
    if fruitless >= MAX_FRUITLESS_GENERATIONS:
        raise TrainingFailed(
            f"{run.storage.url}: {fruitless} worker groups in a row died before their first commit, all from "
            f"{parent or 'the start'}; look at the workers' logs, commit more often, then run again"
        )
