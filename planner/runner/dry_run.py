"""`planner run --dry-run`: checks everything that can be checked before a start, and describes the start."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from planner.base.text import counted
from planner.data.user_dataset import function_of
from planner.dispatch import connection, launch
from planner.dispatch.resources import alive_nodes, room_for
from planner.errors import AnotherDriver, StoreError
from planner.job import Job, batch_sizes, workers_of
from planner.job.step_schedule import conversions
from planner.plan import Plan, make_plan
from planner.runner.execute import resource_warning
from planner.runner.local import local_cluster
from planner.runner.prepare import Prepared
from planner.store.lease import newest_lease
from planner.store.storage import Storage
from planner.store.survey import driver_state, is_run, survey


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """A checked start that was not made."""

    run: str
    """the run's folder or URL"""
    begins: str
    """`a new run`, or the step that it would resume from, as text"""
    step: int
    """the first step"""
    total_steps: int
    """0 if the number of steps depends on data that cannot be read from here"""
    changes: tuple[str, ...]
    """what differs from the job that the run was made with, and the consequences"""
    conversions: tuple[str, ...]
    """the job's lengths that are not in steps, converted to steps"""
    gradient: tuple[str, ...]
    """what planner does to a step's gradient (see `gradient_text`)"""
    cluster: str
    """where it would run, as text"""
    waits: str
    """what it would wait for, or empty if it would begin at once"""
    warning: str
    """what the local cluster lacks and what the run would do without it, or empty"""
    plan: Plan
    """of the first world size"""
    notes: tuple[str, ...]
    """what was found on the way, could not be checked, or would take a while"""


def gradient_text(job: Job) -> tuple[str, ...]:
    """Everything that planner does to a step's gradient, in order, from the backward passes to the optimizer step.

    `planner.train.optimizer_step`, `planner.train.exact.gradient_sums` and `planner.train.loop.Loop._update` do it.
    """
    losses, clip = "Each loss sum of your loop" if job.is_own else "The loss sum", job.train.clip_norm
    sums = "are summed in int64 fixed point" if job.batch.equality == "bitwise" else "are summed by FSDP"
    end = "the step is skipped" if job.train.non_finite == "skip" else "the run stops before the optimizer's step"
    return (
        f"{losses} is divided by its count over the whole global batch.",
        f"Gradients {sums} over rounds and workers, never averaged.",
        f"If a gradient is not finite, {end} (train.non_finite: {job.train.non_finite}).",
        "The gradient is not clipped (train.clip_norm: null)."
        if clip is None
        else f"A global norm above {clip:g} is scaled down to {clip:g} (train.clip_norm: {clip:g}).",
    )


def check_start(prepared: Prepared, *, address: str, nodes: int) -> DryRun:
    """Check the store, the lease and the cluster. With an address, ask that cluster for its nodes.

    Raises:
        PlannerError: the start would be refused.
    """
    job = prepared.job
    prepared, gone = _as_found(prepared)
    notes = [
        *(f"data: {note}" for note in prepared.notes),
        *([f"model: {prepared.adapters}"] if prepared.adapters else []),
        *gone,
        *_check_driver(prepared.run.storage),
        *_check_writable(prepared.run.storage),
    ]
    if not prepared.num_samples:
        notes.append("the data cannot be read from here, so only the workers would check it")
    cluster, waits, warning, room = _at(job, address) if address else _here(job, nodes)
    return DryRun(
        run=prepared.url,
        begins=prepared.resume_text,
        step=prepared.step,
        total_steps=prepared.total_steps,
        changes=prepared.changes,
        conversions=conversions(job, prepared.num_samples),
        gradient=gradient_text(job),
        cluster=cluster,
        waits=waits,
        warning=warning,
        plan=make_plan(batch_sizes(job), workers_of(job).nearest(room)),
        notes=tuple(notes),
    )


def _as_found(prepared: Prepared) -> tuple[Prepared, list[str]]:
    """Return `prepared` with the newest commit whose files exist, and notes about newer commits without files.

    Raises:
        StoreError: the run is damaged.
        DataError: the user's own training loop has no train function.
    """
    gone: list[str] = []
    if is_run(prepared.run.storage):
        found = survey(prepared.url)
        if found.problem:
            raise StoreError(f"{prepared.url}: {found.problem}")
        if prepared.committed and found.newest and found.newest.name != prepared.committed.name:
            gone.append(f"the files of the commit at step {prepared.committed.step} are gone")
            prepared = replace(prepared, committed=found.newest)
    if prepared.job.is_own:
        function_of(prepared.job.data.path, "train")
    return prepared, gone


def _here(job: Job, nodes: int) -> tuple[str, str, str, int]:
    """The local cluster as text, what it waits for, its warning, and its room in workers."""
    local = local_cluster(job, nodes)
    on = counted(local.gpus, "GPU") if local.gpus else "CPU"
    cluster = f"local Ray cluster, {counted(local.num_workers, 'worker')} ({on})"
    return cluster, "", local.warning, local.num_workers


def _at(job: Job, address: str) -> tuple[str, str, str, int]:
    """The cluster at the address as text, what it waits for, its warning, and its room in workers."""
    launch.set_environment(launch.CLUSTER, embedded=False)
    with connection.connected(address, verbose=False):
        found = alive_nodes()
    room = room_for(job.workers.taken, found)
    cluster = f"{address}: {counted(len(found), 'node')} with room for {counted(room, 'worker')}"
    return cluster, resource_warning(job, found), "", room


def _check_driver(storage: Storage) -> list[str]:
    lease = newest_lease(storage)
    state = driver_state(lease)
    if lease is None or state in {"none", "ended"}:
        return []
    if state == "alive":
        raise AnotherDriver(
            f"{storage.url}: {lease.description} is running this run. Stop it first, or wait for its end"
        )
    return [f"{lease.description} held this run, so the start would watch its lease first"]


def _check_writable(storage: Storage) -> list[str]:
    url = storage.url
    if not storage.is_local:
        return [f"whether {url} can be written to was not checked"]
    # The folder, or its nearest parent that exists.
    place = next(folder for folder in (Path(url), *Path(url).parents) if folder.exists())
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        raise StoreError(f"{url}: cannot write there ({place}). Choose another checkpoint.path")
    return []
