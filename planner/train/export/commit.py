"""Exports a commit's model in the Hugging Face layout, in one process, with one file's tensors in memory at a time."""

from dataclasses import dataclass
from pathlib import Path

from planner.data.job_folders import of_trained
from planner.data.model_checks import require_fit
from planner.data.model_folder import ModelFolder
from planner.errors import StoreError, UserError
from planner.job import HfModel, Job
from planner.provenance.identity import MODEL as MODEL_FACT
from planner.provenance.stage import EarlierCommit, earlier_commit
from planner.store.newest import named_and_lost, newest_commit, readable
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder, commit_of
from planner.train.export.atomic_folder import unfinished_folder
from planner.train.export.model_writer import DType, Progress, What, Writer
from planner.wording.resuming import not_used_text


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The result of an export."""

    folder: str
    commit: str
    step: int
    what: What
    dtype: str
    tensors: int
    bytes: int
    """size of the files that hold tensors"""


def commit_at(run: RunFolder, step: int | None) -> Manifest:
    """The commit at `step`, or the newest one if None. Its files exist but are not checked.

    An older commit takes the place of a newest one that is lost or damaged only if the user names its step.

    Raises:
        ManifestMismatch: the commit is not the one that the ledger records.
        StoreError: there is no such commit.
    """
    # Raises an error if there is no run.
    run.identity()
    if step is None:
        return _newest(run)
    names, _ = named_and_lost(run)
    kept = set(run.storage.names("checkpoints"))
    found = [name for name in names if name in kept and commit_of(name)[0] == step]
    if not found:
        raise StoreError(f"{run.storage.url}: {_no_commit_text(names, kept, step)}")
    return readable(run, found[0])


def _newest(run: RunFolder) -> Manifest:
    newest = newest_commit(run)
    if newest.manifest is None:
        raise StoreError(f"{run.storage.url}: the run has no commit to export. Train until the first commit")
    if newest.not_used:
        about = not_used_text(newest.not_used[0])
        raise StoreError(f"{run.storage.url}: {about}. Restore it, or write --step {newest.manifest.step}")
    return newest.manifest


def _no_commit_text(names: list[str], kept: set[str], step: int) -> str:
    """Why there is no commit at `step`, and which steps can be exported.

    Args:
        names: the run's commits, newest first.
        kept: names of those that have files.
        step: the step.
    """
    steps = [str(commit_of(name)[0]) for name in reversed(names) if name in kept]
    if any(commit_of(name)[0] == step for name in names):
        advice = f"Write --step {' or '.join(steps)}" if steps else "Train until the next commit"
        return f"the files of step {step} are not kept. {advice}"
    there = f"Its commits are at step {', '.join(steps)}" if steps else "Train until the first commit"
    return f"the run has no commit at step {step}. {there}"


def export(
    run: RunFolder,
    manifest: Manifest,
    target: Path,
    *,
    dtype: DType = "fp32",
    merge: bool = False,
    progress: Progress = lambda _done, _of: None,
) -> Exported:
    """Write a commit's model to a new folder, which appears complete or not at all.

    Args:
        run: the run's folder.
        manifest: of the commit.
        target: the folder to make.
        dtype: the type of the written tensors.
        merge: write the model with its adapters merged in, instead of the adapters alone.
        progress: called with (tensors done, of how many).

    Raises:
        UserError: the folder exists already, or the run has no model that transformers can load.
        StoreError: the commit is damaged.
    """
    job = run.job(manifest.job_digest)
    if not isinstance(job.model, HfModel):
        raise UserError(
            f"{run.storage.url}: its model.kind is {job.model.kind}, and only kind hf can be exported. "
            "`planner.train.checkpoints.checkpoint.read` gives its tensors"
        )
    _require_complete(run, job, merge=merge)
    if target.exists():
        raise UserError(f"{target}: the folder exists already. Choose another one, or remove it first")
    source, base = _source(run, manifest, job), _base(job)
    run.check_files(manifest.folder, manifest.files)
    with unfinished_folder(target) as half:
        writer = Writer(
            run=run,
            manifest=manifest,
            source=source,
            base=base,
            folder=half,
            dtype=dtype,
            progress=progress,
        )
        what, files, num_tensors = writer.write(merge=merge)
        for file in half.iterdir():
            file.chmod(0o600)  # the folder was private so far, and the files stay so wherever they are copied
        num_bytes = sum(file.stat().st_size for file in files)
        half.rename(target)
    return Exported(
        folder=str(target),
        commit=manifest.name,
        step=manifest.step,
        what=what,
        dtype=dtype,
        tensors=num_tensors,
        bytes=num_bytes,
    )


def _require_complete(run: RunFolder, job: Job, *, merge: bool) -> None:
    """Check that what an export writes is whole: weights, or adapters of weights that others have.

    Raises:
        UserError: it is not.
    """
    assert isinstance(job.model, HfModel)  # the caller checked
    if merge and job.model.lora is None:
        raise UserError(f"{run.storage.url}: --merge puts adapters into the weights, and the run has none. Remove it")
    if job.model.lora is None:
        return
    if job.after is not None and not merge:
        raise UserError(
            f"{run.storage.url}: its adapters belong to the weights of an earlier run (after), which are in no folder. "
            "Put them into these weights: --merge"
        )
    if job.after is None and job.model.weights == "random":
        raise UserError(
            f"{run.storage.url}: its adapters belong to random weights (model.weights: random), which are in no file. "
            "Such a run cannot be exported"
        )


def _base(job: Job) -> EarlierCommit | None:
    """The commit of an earlier run that has the weights below the adapters. None if the job has no such weights.

    Raises:
        StoreError: it is not there, or damaged.
    """
    assert isinstance(job.model, HfModel)  # the caller checked
    if job.after is None or job.model.lora is None:
        return None
    base = earlier_commit(job, "the weights below the adapters")
    base.run.check_files(base.manifest.folder, base.manifest.files)
    return base


def _source(run: RunFolder, manifest: Manifest, job: Job) -> ModelFolder:
    """The folder that the run's first weights came from.

    Raises:
        UserError: the folder is gone, or now holds another model.
    """
    assert isinstance(job.model, HfModel)  # the caller checked
    folder = ModelFolder.find(job.model)
    require_fit(folder)
    before = of_trained(str(manifest.facts.get(MODEL_FACT, "")))
    if before and before != folder.fingerprint():
        raise UserError(
            f"{run.storage.url}: the files in {folder.path} have changed since the run was made, so configuration and "
            "tokenizer may be another model's. Put the files back"
        )
    return folder
