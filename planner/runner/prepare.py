"""Checks a job before its start: everything that the driver can check without a worker."""

import contextlib
from dataclasses import dataclass

from planner.base.disk import absolute_url
from planner.base.wait_reports import reminded
from planner.base.working_dir import as_submitted
from planner.data import model_files
from planner.data.base import AnyDataset
from planner.data.job_paths import require_paths
from planner.dispatch.launch import absolute
from planner.errors import DataError, StoreError
from planner.job import HfModel, Job
from planner.job.step_schedule import moved_schedule, repeated_samples, total_steps
from planner.order.order import Order
from planner.provenance.identity import identity_of, job_changes, open_data, require_same, require_same_first_weights
from planner.runner.display import Display, Say
from planner.runner.tracking_child import check_trackers
from planner.store.newest import Newest, newest_commit
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder
from planner.store.run_place import file_in_the_way
from planner.store.storage import Storage
from planner.wording.event_text import text_of
from planner.wording.training_events import adapters_text, repeat_text


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A job that the driver has checked, and its run's folder."""

    job: Job
    url: str
    accept: frozenset[str]
    run: RunFolder
    num_samples: int
    """of one epoch, or 0 if the data cannot be read from here"""
    total_steps: int
    """0 if the number of steps depends on data that cannot be read from here"""
    committed: Manifest | None
    """the newest commit, or None if there is none"""
    passed_over: tuple[str, ...] = ()
    """newer commits that are lost or damaged, and what the run does instead, one text each"""
    notes: tuple[str, ...] = ()
    """how rows of the data are changed, left out or repeated, one text each"""
    changes: tuple[str, ...] = ()
    """what differs from the job that the run was made with, and the consequences, one text each"""
    adapters: str = ""
    """which layers have adapters, as text, or empty if the job has none or the model is not on this machine"""

    @property
    def step(self) -> int:
        """Steps committed so far."""
        return self.committed.step if self.committed else 0

    @property
    def finished(self) -> bool:
        """Whether the newest commit is the job's last step."""
        return self.committed is not None and 0 < self.total_steps <= self.committed.step

    @property
    def finished_text(self) -> str:
        """The last step of a finished run, such as `finished at step 60`."""
        past = "" if self.step == self.total_steps else f", past the job's {self.total_steps}"
        return f"finished at step {self.step}{past}"

    @property
    def resume_text(self) -> str:
        """Where the run begins: `a new run`, or `resuming at step 8 of 60`."""
        if self.committed is None:
            return "a new run"
        return f"resuming at step {self.committed.step} of {self.total_steps or '?'}"


def prepare(
    job: Job, accept: frozenset[str], display: Display, *, check_data: bool, file: str = "", command: str = ""
) -> Prepared:
    """Check everything that can be checked before anything is started.

    `file` is the job's file, and `command` the one that the user gave with it, for errors (see `require_paths`).

    With `check_data`, data and model must be readable from here. On a cluster they may exist only on the nodes. The
    workers always check them again.

    Raises:
        PlannerError: the store, the model or the data cannot be used, or the run belongs to another job.
    """
    url = absolute_url(job.run_path)
    check_trackers(job, url)
    written, job = job, absolute(job, url)
    run = RunFolder(Storage(url))
    with disk_watch(url, display.warn):
        newest = _newest(run)
    committed = newest.manifest
    adapters = ""
    if check_data:
        require_paths(written, file, command)
        with display.doing("checking the model"):
            model_files.check_here(job)
            adapters = _adapters(job)
    data = _data_here(job, display, must=check_data)
    changes: tuple[str, ...] = ()
    if data is not None and committed is not None:
        changes = _changes(job, run, committed, data, accept)
    if run.storage.exists("run.json"):
        run.identity()
    num_samples = data[1].num_samples if data else 0
    repeated = repeated_samples(job, num_samples) if data else None
    return Prepared(
        job=job,
        url=url,
        accept=accept,
        run=run,
        num_samples=num_samples,
        total_steps=total_steps(job, num_samples),
        committed=committed,
        passed_over=tuple(map(text_of, newest.not_used)),
        notes=(*map(as_submitted, data[0].notes), *map(repeat_text, [repeated] if repeated else [])) if data else (),
        changes=changes,
        adapters=adapters,
    )


def _newest(run: RunFolder) -> Newest:
    """The newest commit, as far as the driver checks it: workers also check the digests of its files.

    Raises:
        StoreError: the storage cannot be read, or another start would lose work (see `newest_commit`).
    """
    try:
        run.storage.names("manifests")
    except StoreError as error:
        if text := file_in_the_way(run.storage):
            raise StoreError(text) from error
        advice = "Check that this storage can be reached, or choose another checkpoint.path"
        raise type(error)(f"{error}. {advice}") from error
    return newest_commit(run)


def disk_watch(url: str, warn: Say) -> contextlib.AbstractContextManager[None]:
    """A context for work in the run's folder. A thread warns if the disk does not answer."""
    return reminded(warn, f"waiting for {url}, which does not answer: check that disk or mount, or kill this process")


def _adapters(job: Job) -> str:
    """Which layers get adapters, as text. The model is built as the workers would build it, without its weights.

    Empty if the job has no adapters or the model's folder is not on this machine.

    Raises:
        UserError: transformers cannot build the model, or a target of the adapters is not one of its layers.
    """
    model = job.model
    if not isinstance(model, HfModel) or model_files.folder_here(model.path, model.revision) is None:
        return ""
    from planner.train.models.hf import adapters_of, build_on_meta  # torch and transformers

    built, _ = build_on_meta(model)
    return adapters_text(adapters_of(built)) if model.lora is not None else ""


def _data_here(job: Job, display: Display, *, must: bool) -> tuple[AnyDataset, Order] | None:
    """The job's data and the order of its rows. None if it cannot be read from here and `must` is false.

    Raises:
        DataError: it cannot be read, and `must` is true.
    """
    with display.progress("data checked") as progress:
        try:
            return open_data(job, progress)
        except DataError:
            if must:
                raise
    return None


def _changes(
    job: Job, run: RunFolder, committed: Manifest, data: tuple[AnyDataset, Order], accept: frozenset[str]
) -> tuple[str, ...]:
    """What differs from the job that the run was made with, one text each.

    Raises:
        ResumeRefused: a difference makes it another training run, and the user has not accepted it.
    """
    where, (dataset, order) = run.storage.url, data
    before = run.job_if_known(committed.job_digest)
    changes = job_changes(before, job) if before else []
    identity = identity_of(job, dataset, order)
    require_same_first_weights(committed.identity, identity, job, where)
    differing = [*require_same(committed.identity, identity, changes, accept, where), *changes]
    total = committed.total_steps
    moved = moved_schedule(before, job, order.num_samples, committed.step, total) if before else None
    return tuple(map(text_of, [*differing, moved] if moved else differing))
