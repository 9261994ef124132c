"""A prepared job is trained to its end: the lease, the cluster, the workers, and what came of it."""

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from planner.base.text import counted
from planner.dispatch import connection
from planner.dispatch import launch as dispatch
from planner.dispatch.resources import alive_nodes, room_for, shortage
from planner.dispatch.token_file import token_warning
from planner.errors import ClusterLost, DiskFull, RunError, StoreError, TrainingFailed
from planner.job import Job
from planner.plan import Resources
from planner.runner.committed import commit_text, newest_commit_text
from planner.runner.display import Display, StartedRun
from planner.runner.driver_end import DriverWatch, RayListeners, RunSummary, driver_end_message
from planner.runner.local import LocalShape, embedded, local_cluster
from planner.runner.prepare import Prepared, disk_watch
from planner.runner.signals import ended_like_ctrl_c
from planner.store.lease import Lease
from planner.store.newest import newest_readable
from planner.store.records import Manifest
from planner.store.storage import Storage
from planner.train.setup import Launch

# A file of no bytes finds room on a full disk.
_PROBE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Where a run stands when its driver has ended in order."""

    url: str
    """the run's folder"""
    step: int
    """of the newest commit; 0 if there is none"""
    total_steps: int
    """of the job; 0 if nobody could read the data so far"""
    committed: str
    """the same in words"""
    resume_command: str
    """what goes on from there"""

    @property
    def finished(self) -> bool:
        """Whether all steps are done. If not, the run was interrupted, and the workers have committed."""
        return self.step >= self.total_steps > 0


@dataclass(frozen=True, kw_only=True)
class _Start:
    """What a driver is about to do."""

    prepared: Prepared
    opening: str
    launch: Launch
    subject: RunSummary
    address: str
    """of a Ray cluster; empty for a local one"""
    local: LocalShape | None
    verbose: bool

    @property
    def timings(self) -> dispatch.Timings:
        """How quickly Ray looks at its workers."""
        return dispatch.CLUSTER if self.address else dispatch.EMBEDDED


def execute(
    prepared: Prepared,
    display: Display,
    *,
    opening: str,
    address: str,
    nodes: int,
    verbose: bool,
    resume_command: str,
) -> RunResult:
    """Run to the end, or until it is interrupted: Ctrl-C, SIGTERM or SIGHUP. Call it in the main thread.

    Args:
        prepared: the job; see `prepare`.
        display: what is shown, and where.
        opening: the first line that is shown.
        address: of a Ray cluster; empty for a local one.
        nodes: of the local cluster; 0 for one per core or GPU.
        verbose: whether Ray's own messages are shown.
        resume_command: what goes on from there, for whoever reads how the run ended.

    Raises:
        PlannerError: the run cannot go on.
    """
    local = None if address else local_cluster(prepared.job, nodes)
    if address and (warning := token_warning(os.environ)):
        display.warn(f"planner: {warning}")
    with disk_watch(prepared.url, display.warn):
        _require_writable(prepared.run.storage)
    subject = RunSummary(
        url=prepared.url, total_steps=prepared.total_steps, resume_command=resume_command, driver=os.getpid()
    )
    start = _Start(
        prepared=prepared,
        opening=opening,
        launch=dispatch.new_launch(prepared.job, prepared.url, prepared.accept),
        subject=subject,
        address=address,
        local=local,
        verbose=verbose,
    )
    interrupted = False
    try:
        _train(start, display)
    except KeyboardInterrupt:
        interrupted = True
    except ClusterLost as error:
        raise ClusterLost(driver_end_message(subject, str(error))) from error
    except TrainingFailed as error:
        raise TrainingFailed(f"{error}; {newest_commit_text(prepared.url, prepared.total_steps)}") from error
    with disk_watch(prepared.url, display.warn):
        newest = newest_readable(prepared.run)
    return result_of(prepared, newest, resume_command, interrupted=interrupted)


def _train(start: _Start, display: Display) -> None:
    """Hold the run's lease, start or join the cluster, and train.

    Raises:
        KeyboardInterrupt: the run was interrupted.
        PlannerError: it cannot go on.
    """
    prepared, launch, local = start.prepared, start.launch, start.local
    dispatch.set_environment(start.timings, embedded=local is not None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(ended_like_ctrl_c())
        stop = partial(os.kill, os.getpid(), signal.SIGTERM)  # `nohup` and `&` have SIGINT ignored
        stack.enter_context(Lease(prepared.run.storage, launch.launch_id, display.say, on_lost=stop))
        words = stack.enter_context(DriverWatch(start.subject))
        display.say("\n".join((start.opening, *(f"data: {note}" for note in prepared.notes))))
        cluster = stack.enter_context(embedded(local, display.say)) if local else None
        place = cluster.address if cluster else start.address
        stack.enter_context(_connected(place, words, verbose=start.verbose, is_embedded=cluster is not None))
        if warning := resource_warning(prepared.job, alive_nodes()):
            display.say(warning)
        running = StartedRun(
            run=prepared.run,
            step=prepared.step,
            total_steps=prepared.total_steps,
            state=partial(dispatch.state_of, launch),
            cluster=cluster,
        )
        say = stack.enter_context(display.watch(running))
        on_cpu = local is not None and not local.gpus
        dispatch.fit(launch, start.timings, on_cpu=on_cpu, embedded=cluster is not None, say=say)


def result_of(prepared: Prepared, newest: Manifest | None, resume_command: str, *, interrupted: bool) -> RunResult:
    """Where the run stands, by its newest commit.

    Raises:
        RunError: it has not come to its end, and nobody interrupted it.
    """
    result = RunResult(
        url=prepared.url,
        step=newest.step if newest else 0,
        # What this launch was asked for; the commit may be from one that was asked for less.
        total_steps=prepared.total_steps or (newest.total_steps if newest else 0),
        committed=commit_text(newest, prepared.url, prepared.total_steps),
        resume_command=resume_command,
    )
    if not result.finished and not interrupted:
        raise RunError(f"the workers ended early: {result.committed}; try again with --verbose: {resume_command}")
    return result


def resource_warning(job: Job, nodes: Sequence[Resources]) -> str:
    """Said before a wait that would otherwise be silent; empty if there is none."""
    least, wanted = job.workers.min, job.workers.taken
    room = room_for(wanted, nodes)
    if room >= least:
        return ""
    why = f" ({lack})" if (lack := shortage(wanted, nodes)) else ""
    until = "such nodes come, or ask for less" if why else "nodes come"
    has = f"the cluster has room for {counted(room, 'worker')}, and workers.min is {least}"
    return f"waiting: {has}{why}; it begins when {until}"


def _require_writable(storage: Storage) -> None:
    """Check that the folder can be written to; the workers would find out a minute later.

    Raises:
        StoreError: it cannot.
    """
    probe = f"probe-{uuid.uuid4().hex}"
    try:
        storage.write(probe, bytes(_PROBE_BYTES))
        storage.delete(probe)
    except DiskFull:
        raise
    except StoreError as error:
        reason = str(error).rpartition(f"{probe}: ")[2]
        raise StoreError(f"{storage.url}: cannot write there ({reason}); choose another checkpoint.path") from error


@contextlib.contextmanager
def _connected(address: str, words: DriverWatch, *, verbose: bool, is_embedded: bool) -> Iterator[None]:
    """A connection to the cluster. Meanwhile `words` watches the processes of Ray that this driver depends on."""
    with connection.connected(address, verbose=verbose, embedded=is_embedded):
        gcs, raylet = connection.ray_listeners()
        with words.watching(RayListeners(gcs=gcs, raylet=raylet, is_embedded=is_embedded)):
            yield
