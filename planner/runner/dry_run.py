"""`planner run --dry-run`: everything that can be checked before a start, and what the start would be."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import AnotherDriver, StoreError
from planner.job import Job

if TYPE_CHECKING:
    from planner.cli.run import Prepared
    from planner.report.dry_run import DryRun
    from planner.store.run import Run


def rehearse_start(prepared: "Prepared", *, address: str, nodes: int) -> "DryRun":
    """Look at the store, the lease and the cluster. With an address, the cluster is asked what it has.

    Raises:
        PlannerError: the start would be refused.
    """
    from planner.job import batch_sizes
    from planner.job.lengths import conversions
    from planner.plan import choose
    from planner.report.dry_run import DryRun, gradient_words

    job = prepared.job
    prepared, gone = _as_found(prepared)
    notes = [
        *(f"data: {note}" for note in prepared.notes),
        *([f"model: {prepared.adapters}"] if prepared.adapters else []),
        *gone,
        *_check_driver(prepared.run),
        *_check_writable(prepared.run),
    ]
    if not prepared.num_samples:
        notes.append("the data cannot be read from here; the workers would check it")
    cluster, waits, room = _at(job, address) if address else _here(job, nodes)
    size = max(min(room, job.workers.max, job.batch.global_batch), min(job.workers.min, job.batch.global_batch))
    return DryRun(
        run=prepared.url,
        begins=prepared.resume_text,
        step=prepared.committed.step if prepared.committed else 0,
        total_steps=prepared.total_steps,
        changes=prepared.changes,
        conversions=conversions(job, prepared.num_samples),
        gradient=gradient_words(job),
        cluster=cluster,
        waits=waits,
        plan=choose(batch_sizes(job), size),
        notes=tuple(notes),
    )


def _as_found(prepared: "Prepared") -> "tuple[Prepared, list[str]]":
    """With the commit whose files are there, as the workers would find it, as far as names tell; and what is gone.

    Raises:
        StoreError: the run is damaged.
        DataError: a loop of the user's own has no train function.
    """
    from planner.data.own import function_of
    from planner.store.survey import is_run, survey

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


def _here(job: Job, nodes: int) -> tuple[str, str, int]:
    from planner.base.text import counted
    from planner.cli.run import local_cluster

    local = local_cluster(job, nodes)
    on = "on the CPU" if not local.gpus else f"on {counted(local.gpus, 'GPU')}"
    return f"a local one with room for {counted(local.num_workers, 'worker')}, {on}", "", local.num_workers


def _at(job: Job, address: str) -> tuple[str, str, int]:
    from planner.base.text import counted
    from planner.cli.run import room_warning
    from planner.dispatch import launch
    from planner.dispatch.room import alive_nodes, room_for

    launch.set_environment(launch.CLUSTER, embedded=False)
    with launch.connected(address, verbose=False):
        found = alive_nodes()
    room = room_for(job.workers.taken, found)
    words = f"{address}: {counted(len(found), 'node')} with room for {counted(room, 'worker')}"
    return words, room_warning(job, found), room


def _check_driver(run: "Run") -> list[str]:
    from planner.store.lease import newest_lease
    from planner.store.survey import driver_state

    lease = newest_lease(run.storage)
    state = driver_state(lease)
    if lease is None or state in {"none", "ended"}:
        return []
    if state == "alive":
        raise AnotherDriver(f"{run.storage.url}: {lease.words} is running this run; stop it first, or wait for its end")
    return [f"{lease.words} held this run; the start would watch its lease first"]


def _check_writable(run: "Run") -> list[str]:
    url = run.storage.url
    if not run.storage.is_local:
        return [f"whether {url} can be written to only a start would tell"]
    # The folder, or the nearest above it that is there.
    place = next(folder for folder in (Path(url), *Path(url).parents) if folder.exists())
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        raise StoreError(f"{url}: cannot write there ({place}); choose another checkpoint.path")
    return []
