"""The start of a run as a value: `plan_start` makes every check that can be made beforehand, once.

`planner run --dry-run` prints the `Start`. `planner run`, `planner demo`, `planner.run` and `planner verify --ray` hand
it on to `execute.run`. So a run makes the checks of its dry run, because they are the same ones.
"""

import contextlib
import os
from dataclasses import dataclass, replace

from planner.base.disk import absolute_url
from planner.base.text import as_submitted
from planner.base.wait_reports import reminded
from planner.data.base import SampleDataset
from planner.data.job_folders import check_here
from planner.data.job_paths import require_paths
from planner.data.longest import require_fitting
from planner.data.model_folder import ModelFolder
from planner.data.user_dataset import function_of
from planner.dispatch.connection import require_free
from planner.dispatch.launch import absolute
from planner.dispatch.token_file import token_warning
from planner.dispatch.worker import MakeHooks, worker_hooks
from planner.errors import DataError, StoreError
from planner.job import Job, batch_sizes
from planner.job.step_schedule import moved_schedule, repeated_samples, total_steps
from planner.local_cluster.embedded import require_platform
from planner.order.order import Order
from planner.plan.lowered_caps import Caps, caps_text, least_caps
from planner.provenance.data_facts import data_facts, evaluation_changes
from planner.provenance.identity import identity_of, job_changes, open_data, require_same, require_same_first_weights
from planner.runner.display import Display, Say
from planner.runner.earlier_run import begun_after, resumed_after
from planner.runner.evaluation_text import evaluation_texts, mixture_texts
from planner.runner.local import Cluster, Local, LocalShape, Where, local_cluster
from planner.runner.signals import ended_like_ctrl_c
from planner.runner.tracking_child import check_trackers
from planner.store.lease import newest_lease, require_no_driver
from planner.store.lowered_caps import read_caps
from planner.store.newest import Newest, newest_commit
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder
from planner.store.run_place import file_in_the_way, require_run_place
from planner.store.storage import Storage
from planner.wording.event_text import text_of
from planner.wording.training import adapters_text, repeat_text

SILENT = Display()


@dataclass(frozen=True, kw_only=True)
class Start:
    """A checked start of a run. `plan_start` makes it, and `execute.run` takes it."""

    job: Job
    """with absolute paths, and the commit that `after` stands for"""
    address: str
    """of a Ray cluster, or empty for a local one, which has none before it starts"""
    local: LocalShape | None = None
    """the shape of the local cluster. None on another cluster, and if the run is finished"""
    run: RunFolder
    accept: frozenset[str]
    """the fields of the run's identity that may change"""
    num_samples: int
    """of one epoch, or 0 if the data cannot be read from here"""
    total_steps: int
    """0 if the number of steps depends on data that cannot be read from here"""
    committed: Manifest | None
    """the newest commit, or None if there is none"""
    passed_over: tuple[str, ...]
    """newer commits that are lost or damaged, and what the run does instead, one text each"""
    data_notes: tuple[str, ...]
    """how rows of the data are changed, left out or repeated, one text each"""
    mixture: tuple[str, ...]
    """how many samples an epoch has of each set of a mixture, one text each. Empty if there is one set, or if the data
    cannot be read from here"""
    evaluation: tuple[str, ...]
    """what the run evaluates on, one text each. Empty if nothing, or if the data cannot be read from here"""
    notes: tuple[str, ...]
    """what else was found on the way, or could not be checked"""
    changes: tuple[str, ...]
    """what differs from the job that the run was made with, and the consequences, one text each"""
    begins: str
    """`a new run`, `a new run from step 40 of /shared/sft`, or `resuming at step 8 of 60`"""
    opening: str
    """the first line that the run shows"""
    resume_command: str
    """resumes the run, for the messages about its end"""
    hooks: MakeHooks = worker_hooks
    """what the workers do beside a step. A rehearsal has its own"""
    eager: bool = False
    """whether every new node is used, even if the resize does not pay"""

    @property
    def url(self) -> str:
        """The run's folder or URL."""
        return self.run.storage.url

    @property
    def warning(self) -> str:
        """What the local cluster lacks, and what the run does without it. Empty if nothing, or on another cluster."""
        return self.local.warning if self.local else ""

    @property
    def step(self) -> int:
        """Steps committed so far."""
        return self.committed.step if self.committed else 0

    @property
    def finished(self) -> bool:
        """Whether the newest commit is the job's last step. Then there is nothing to start."""
        return self.committed is not None and 0 < self.total_steps <= self.committed.step

    @property
    def finished_text(self) -> str:
        """The last step of a finished run, such as `finished at step 60`."""
        past = "" if self.step == self.total_steps else f", past the job's {self.total_steps}"
        return f"finished at step {self.step}{past}"


def plan_start(
    job: Job,
    where: Where,
    *,
    accept: frozenset[str] = frozenset(),
    display: Display = SILENT,
    resume_command: str = "",
    file: str = "",
    command: str = "",
) -> Start:
    """Check everything that can be checked before anything is started. The run's folder is left as it was.

    For a local cluster, data and model must be readable from here. On another cluster they may exist only on the
    nodes, and the workers check them. A finished run is not checked any further, because nothing will be started.

    Args:
        job: the job, with the paths that the user wrote.
        where: the cluster.
        accept: the fields of the run's identity that may change (`provenance.identity.parse_accept`).
        display: shows what takes long, and warnings.
        resume_command: resumes the run, for the messages about its end.
        file: the job's file, for errors (see `require_paths`). Empty if there is none.
        command: the command that the user gave with the file, such as `run`.

    Raises:
        PlannerError: the start is refused.
    """
    url, must = absolute_url(job.run_path), isinstance(where, Local)
    check_trackers(job, url)
    written, job = job, absolute(job, url)
    run = RunFolder(Storage(url))
    with disk_watch(url, display.warn):
        newest = _newest(run)
    adapters = _check_model(written, job, display, file, command) if must else ""
    job = _begun_after(job, newest.manifest, accept, display)
    data = _data_here(job, display, must=must)
    changes = _changes(job, run, newest.manifest, data, accept) if data and newest.manifest else ()
    if run.storage.exists("run.json"):
        run.identity()
    total = total_steps(job, num_samples := data[1].num_samples if data else 0)
    begins = f"resuming at step {newest.manifest.step} of {total or '?'}" if newest.manifest else _new_run(job)
    start = Start(
        job=job,
        address=where.address if isinstance(where, Cluster) else "",
        run=run,
        accept=accept,
        num_samples=num_samples,
        total_steps=total,
        committed=newest.manifest,
        passed_over=tuple(map(text_of, newest.not_used)),
        data_notes=_data_notes(job, data),
        mixture=mixture_texts(*data) if data else (),
        evaluation=evaluation_texts(job, *data) if data else (),
        notes=(f"model: {adapters}",) if adapters else (),
        changes=changes,
        begins=begins,
        opening=f"{job.name}: {begins} in {url}",
        resume_command=resume_command,
    )
    return start if start.finished else _with_place(start, where, display, data and data[0])


def _with_place(start: Start, where: Where, display: Display, dataset: SampleDataset | None) -> Start:
    """The start with its cluster's shape, after the checks of process, samples' lengths, cluster, code and folder.

    Raises:
        PlannerError: the start is refused.
    """
    job, storage = start.job, start.run.storage
    require_free(is_local=isinstance(where, Local))
    if dataset is not None:
        with display.doing("checking the lengths of samples"):
            require_fitting(job, dataset)
    earlier = _resumed_after(start, display)
    local = _local(job, where, display)
    if job.is_own and start.num_samples:  # a cluster's nodes may have the file where this machine does not
        function_of(job.data.path, "train")
    with display.doing("checking the run's folder"), disk_watch(start.url, display.warn), ended_like_ctrl_c():
        other = require_no_driver(start.url, newest_lease(storage))
        lowered = _lowered(job, storage)
        require_run_place(storage)  # last, because it is the only check that writes
    watches = f"{other.description} held this run, so the start would watch its lease first" if other else ""
    unseen = "" if start.num_samples else "the data cannot be read from here, so only the workers would check it"
    return replace(start, local=local, notes=(*start.notes, *filter(None, (earlier, watches, unseen)), *lowered))


def _lowered(job: Job, storage: Storage) -> tuple[str, ...]:
    """The caps on micro-batches that the run has lowered, one text for each kind of device."""
    with contextlib.suppress(StoreError):  # then the run begins with the job's
        if (caps := read_caps(storage)) is not None:
            found = caps.for_job(Caps.of(batch_sizes(job)))
            least = {each.device: least_caps(found.of, found.where({each.device})) for each in found.lowered}
            return tuple(
                f"{device} was out of memory in this run, so micro-batches there have at most {caps_text(each)}. The "
                "plan shown is that of the job file"
                for device, each in least.items()
            )
    return ()


def _begun_after(job: Job, committed: Manifest | None, accept: frozenset[str], display: Display) -> Job:
    """The job with the commit of the earlier run that it goes on from. Unchanged without `after`.

    Raises:
        PlannerError: there is no such commit, or it does not suit the job.
    """
    if job.after is None:
        return job
    with display.doing("checking the earlier run"), disk_watch(job.after.run, display.warn):
        return begun_after(job, committed, accept)


def _resumed_after(start: Start, display: Display) -> str:
    """What could not be checked of the earlier run of a run that resumes. Empty if nothing, or without `after`.

    Raises:
        PlannerError: another run is there now, or it is not there and every generation needs it.
    """
    after = start.job.after
    if after is None or start.committed is None:
        return ""
    with display.doing("checking the earlier run"), disk_watch(after.run, display.warn):
        return resumed_after(start.job)


def _new_run(job: Job) -> str:
    return f"a new run from {job.after.text}" if job.after else "a new run"


def _local(job: Job, where: Where, display: Display) -> LocalShape | None:
    """The shape of the local cluster. None on another cluster.

    Raises:
        UserError: this machine has too few places for the job.
        RunError: no local cluster runs on this machine.
    """
    if isinstance(where, Local):
        require_platform()
        return local_cluster(job, where.nodes)
    if warning := token_warning(os.environ):
        display.warn(f"planner: {warning}")
    return None


def _check_model(written: Job, job: Job, display: Display, file: str, command: str) -> str:
    """Which layers have adapters, as text, or empty. Checks that the model and the data are there.

    Raises:
        PlannerError: a file is missing, or the model cannot be used.
    """
    require_paths(written, file, command)
    with display.doing("checking the model"):
        folder = check_here(job).model
        return _adapters(folder) if folder else ""


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


def _adapters(folder: ModelFolder) -> str:
    """Which layers get adapters, as text. The model is built as the workers would build it, without its weights.

    Empty if the job has no adapters.

    Raises:
        UserError: transformers cannot build the model, or a target of the adapters is not one of its layers.
    """
    from planner.train.models.hf import adapters_of, build_for_shapes  # torch and transformers

    built = build_for_shapes(folder)
    return adapters_text(adapters_of(built)) if folder.model.lora is not None else ""


def _data_here(job: Job, display: Display, *, must: bool) -> tuple[SampleDataset, Order] | None:
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


def _data_notes(job: Job, data: tuple[SampleDataset, Order] | None) -> tuple[str, ...]:
    """How rows of the data are changed, left out or repeated. Empty if the data cannot be read from here."""
    if data is None:
        return ()
    dataset, order = data
    repeated = repeated_samples(job, order.num_samples)
    return (*map(as_submitted, dataset.notes), *([repeat_text(repeated)] if repeated else []))


def _changes(
    job: Job, run: RunFolder, committed: Manifest, data: tuple[SampleDataset, Order], accept: frozenset[str]
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
    facts = committed.facts, data_facts(dataset, order)
    differing = [
        *require_same(committed.identity, identity, changes, accept, where, facts=facts),
        *changes,
        *evaluation_changes(*facts),
    ]
    total = committed.total_steps
    moved = moved_schedule(before, job, order.num_samples, committed.step, total) if before else None
    return tuple(map(text_of, [*differing, moved] if moved else differing))
