"""The earlier run that a job goes on from (`after`): which of its commits gives the first weights.

A start finds the commit once and pins it: the job gets the commit's step and the digest of its manifest. The digest is
part of the run's identity (`planner.provenance.identity`), and the manifests and headers of the run name all three
(`stage_of`). A resume uses the pinned commit, also if the earlier run has gone on since or is not there any more.

No torch, no Ray.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from planner.base.disk import absolute_url
from planner.errors import ResumeRefused, StoreError, Unreachable, UserError
from planner.job import After, HfModel, Job
from planner.provenance.identity import MODEL
from planner.store.lease import driver_state, newest_lease
from planner.store.newest import named_and_lost, newest_commit, readable, require_there
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder, commit_of
from planner.store.storage import Storage

STAGE = "after"
"""the name of the earlier run's commit among the facts of manifests and headers"""


@dataclass(frozen=True, kw_only=True)
class EarlierCommit:
    """The commit of an earlier run that gives the first weights."""

    run: RunFolder
    manifest: Manifest


def stage_of(facts: Mapping[str, Any]) -> After | None:
    """The commit that a run began from, by the facts of a manifest or of a header. None if they name none."""
    with suppress(ValueError):  # not a section of a job: somebody altered it
        return After.model_validate(facts[STAGE]) if STAGE in facts else None
    return None


def pinned(job: Job, committed: Manifest | None = None, accept: frozenset[str] = frozenset()) -> Job:
    """The job with the step and the manifest's digest of the commit that it goes on from.

    Args:
        job: with absolute paths.
        committed: the newest commit of the job's own run, which says what it began from. None for a new run.
        accept: fields of the run's identity that may change. With `model`, another commit may take the place of the
            one that the run began from.

    Raises:
        UserError: there is no such commit, or the earlier run is not finished.
        ResumeRefused: the run began from another commit.
        StoreError: the earlier run cannot be read.
    """
    if job.after is None:
        return job
    began = stage_of(committed.facts) if committed else None
    if began is None:
        return _with(job, _chosen(job.after, job.run_path))
    is_other = (job.after.step or began.step, job.after.manifest or began.manifest) != (began.step, began.manifest)
    if MODEL in accept and (is_other or _is_known_replaced(job.after.run, began)):
        return _with(job, _chosen(job.after, job.run_path))
    if is_other:
        raise ResumeRefused(
            f"{job.run_path}: the run began from {began.text} (manifest {_short(began)}), and its job now says "
            f"{job.after.text}. Write after.step: {began.step}, or choose another checkpoint.path"
        )
    return _with(job, began.model_copy(update={"run": job.after.run}))


def now_text(after: After | None) -> str:
    """The commit that a run began from, and whether it is there now, for people. Empty for None."""
    if after is None:
        return ""
    try:
        now = "another run is there now" if _replaced(after.run, after) else "it is there now"
    except StoreError as error:
        now = f"it cannot be looked at now: {error}"
    return f"{after.whole_text} ({now})"


def needed_again(job: Job) -> str:
    """What every generation reads from the earlier run, as text. Empty if only the first one reads from it."""
    if job.after is None:
        return ""
    if isinstance(job.model, HfModel) and job.model.lora is not None:
        return "the weights below the adapters"
    return "the reference" if job.reference.source == "model" and job.reference.model is None else ""


def unchanged_note(job: Job) -> str:
    """Check that the earlier run of a pinned job still has the commit. Returns what could not be checked, or empty.

    Raises:
        ResumeRefused: another run, or another commit, is there now.
    """
    if (after := job.after) is None:
        return ""
    try:
        replaced = _replaced(after.run, after)
    except StoreError as error:
        return f"after: {after.text} cannot be checked ({error}). The run goes on without it"
    if replaced:
        raise ResumeRefused(
            f"{job.run_path}: the run began from {after.text} (manifest {_short(after)}), and another run is there "
            f"now, without such a commit. Put the earlier run back, choose another checkpoint.path, or accept what is "
            f"there now: --accept {MODEL}"
        )
    return ""


def require_pinned(job: Job) -> After | None:
    """The commit that a job goes on from, None without `after`.

    Raises:
        UserError: a start has not pinned it.
    """
    if job.after is not None and job.after.manifest is None:
        raise UserError(f"after: {job.after.text} is not pinned to a commit. Call planner.provenance.stage.pinned")
    return job.after


def earlier_commit(job: Job, what: str = "the first weights") -> EarlierCommit:
    """The commit that a pinned job goes on from, with all of its files there. Their digests are not checked.

    Args:
        job: the job.
        what: what is read from it, for errors.

    Raises:
        StoreError: the commit or a file of it is not there, or is not the pinned one.
    """
    after = require_pinned(job)
    assert after is not None  # the caller checked
    run = RunFolder(Storage(after.run))
    try:
        manifest = readable(run, _require_named(run, after))
        require_there(run.storage, manifest)
    except StoreError as error:
        raise type(error)(f"after: {what} cannot be read from {after.text}: {error}. Put that run back") from error
    return EarlierCommit(run=run, manifest=manifest)


def _with(job: Job, after: After) -> Job:
    return job.model_copy(update={"after": after})


def _chosen(after: After, own_path: str) -> After:
    """The commit that a job names, or the last one of the run.

    Raises:
        UserError: there is no such commit, or the run is not finished.
        StoreError: the run cannot be read.
    """
    if absolute_url(after.run) == absolute_url(own_path):
        raise UserError(f"after: {after.run} is the run itself (checkpoint.path). Write the folder of the earlier run")
    run = RunFolder(Storage(after.run))
    try:
        run.identity()
        manifest = _last(run) if after.step is None else _at(run, after.step)
    except StoreError as error:
        raise type(error)(f"after: {error}") from error
    digest = run.manifest_digest(manifest.name)
    if after.manifest not in (None, digest):
        raise UserError(
            f"after: the commit of step {manifest.step} of {after.run} has manifest {digest[:16]}, and after.manifest "
            f"is {_short(after)}. Name the run and the step of that commit, or remove after.manifest"
        )
    return After(run=after.run, step=manifest.step, manifest=digest)


def _last(run: RunFolder) -> Manifest:
    """The last commit of a finished run.

    Raises:
        UserError: it is not finished.
        StoreError: it cannot be read, or newer commits are lost or damaged.
    """
    url, newest = run.storage.url, newest_commit(run)
    manifest = newest.manifest
    is_running = driver_state(newest_lease(run.storage)) == "alive"
    if manifest is None:
        raise UserError(f"after: {url} has no commit. {'Wait for the end of that run' if is_running else 'Train it'}")
    if newest.not_used:
        lost = newest.not_used[0]
        raise StoreError(
            f"{url}: commit {lost.commit} is {f'damaged ({lost.reason})' if lost.reason else 'lost'}. Restore it, or "
            f"write after.step: {manifest.step}"
        )
    if is_running or manifest.step < manifest.total_steps:
        state = "is still training" if is_running else "is not finished"
        wait = "Wait for its end" if is_running else "Train it to its end"
        raise UserError(
            f"after: {url} {state} (its newest commit is of step {manifest.step} of {manifest.total_steps}). {wait}, "
            f"or name a step: after: {{run: {url}, step: {manifest.step}}}"
        )
    return manifest


def _at(run: RunFolder, step: int) -> Manifest:
    """The newest commit of a step, if its files are kept.

    Raises:
        UserError: the run has no such commit.
        StoreError: the commit cannot be read, or is damaged.
    """
    names, _ = named_and_lost(run)
    kept = set(run.storage.names("checkpoints"))
    for name in (name for name in names if name in kept and commit_of(name)[0] == step):
        manifest = readable(run, name)
        require_there(run.storage, manifest)
        return manifest
    steps = ", ".join(str(commit_of(name)[0]) for name in reversed(names) if name in kept)
    raise UserError(f"after.step: {run.storage.url} keeps no commit of step {step}. Write one of {steps or 'none'}")


def _named(run: RunFolder, after: After) -> str:
    """The name of the pinned commit. Empty if the run has no such commit.

    Raises:
        StoreError: there is no run, or it cannot be read now.
    """
    run.identity()
    for name in (name for name in run.commits() if commit_of(name)[0] == after.step):
        try:
            if run.manifest_digest(name) == after.manifest:
                return name
        except Unreachable:
            raise  # it may well be the commit
        except StoreError:  # torn
            continue
    return ""


def _require_named(run: RunFolder, after: After) -> str:
    if name := _named(run, after):
        return name
    raise StoreError(f"the run there has no commit with manifest {_short(after)}")


def _replaced(url: str, after: After) -> bool:
    """Whether the run at the URL is not the one with the pinned commit. Manifests are never removed.

    Raises:
        StoreError: there is no run, or it cannot be read.
    """
    return not _named(RunFolder(Storage(url)), after)


def _is_known_replaced(url: str, after: After) -> bool:
    with suppress(StoreError):
        return _replaced(url, after)
    return False


def _short(after: After) -> str:
    return (after.manifest or "")[:16]
