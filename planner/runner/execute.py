"""Trains a prepared job to its end: takes the lease, starts or joins the cluster, and starts the workers."""

import contextlib
import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from planner.base.text import counted
from planner.dispatch import connection
from planner.dispatch import launch as dispatch
from planner.dispatch.metrics_exporter import MetricsExporter
from planner.dispatch.resources import alive_nodes, room_for, shortage
from planner.dispatch.token_file import token_warning
from planner.errors import ClusterLost, RunError, StoreError, TrainingFailed
from planner.job import Job
from planner.plan import Resources
from planner.runner.commit_text import commit_text, newest_commit_text
from planner.runner.display import Display, StartedRun
from planner.runner.driver_end import DriverWatch, RayListeners, RunSummary, driver_end_message
from planner.runner.local import LocalShape, embedded, local_cluster
from planner.runner.prepare import Prepared, disk_watch
from planner.runner.signals import ended_like_ctrl_c
from planner.runner.tracking_child import TrackingChild
from planner.store.code_failure import read_failure
from planner.store.lease import DriverLease
from planner.store.newest import newest_commit
from planner.store.records import Manifest
from planner.store.run_place import require_run_place
from planner.store.run_status import StatusWriter
from planner.train.setup import Launch


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Where a run stands when its driver has ended normally."""

    url: str
    """the run's folder"""
    step: int
    """of the newest commit, or 0 if there is none"""
    total_steps: int
    """of the job, or 0 if the number depends on data that was not read yet"""
    committed: str
    """the newest commit as text, such as `step 8 of 60 is committed in runs/demo`"""
    resume_command: str
    """the command that resumes the run"""

    @property
    def finished(self) -> bool:
        """Whether all steps are committed. If not, the run was interrupted."""
        return self.step >= self.total_steps > 0


@dataclass(frozen=True, kw_only=True)
class _Start:
    """The settings of one start."""

    prepared: Prepared
    opening: str
    launch: Launch
    subject: RunSummary
    address: str
    """of a Ray cluster, or empty for a local one"""
    local: LocalShape | None
    verbose: bool

    @property
    def timings(self) -> dispatch.PollSettings:
        """How often Ray checks its workers."""
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
    """Run to the end, or until Ctrl-C, SIGTERM or SIGHUP. Call it in the main thread.

    Args:
        prepared: the job (see `prepare`).
        display: shows the run.
        opening: the first line that is shown.
        address: of a Ray cluster, or empty for a local one.
        nodes: logical nodes of the local cluster, or 0 for as many as the run uses, at most one per core or GPU.
        verbose: whether Ray's own messages are shown.
        resume_command: the command that resumes the run, for the message about its end.

    Raises:
        PlannerError: the run cannot continue.
    """
    local = None if address else local_cluster(prepared.job, nodes)
    if address and (warning := token_warning(os.environ)):
        display.warn(f"planner: {warning}")
    with disk_watch(prepared.url, display.warn):
        require_run_place(prepared.run.storage, leave_folders=True)
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
        text = f"{error} ({newest_commit_text(prepared.url, prepared.total_steps)})"
        raise TrainingFailed(text + _traceback_line(start)) from error
    except RunError as error:
        if line := _traceback_line(start):
            raise type(error)(f"{error}{line}") from error
        raise
    with disk_watch(prepared.url, display.warn):
        newest = newest_commit(prepared.run).manifest
    return result_of(prepared, newest, resume_command, interrupted=interrupted)


def _traceback_line(start: _Start) -> str:
    """A line that says how to see the traceback of the user's code, if it failed in this launch. Empty if not."""
    with contextlib.suppress(StoreError):
        failure = read_failure(start.prepared.run.storage)
        if failure and failure.launch == start.launch.launch_id:
            return f"\nFor the whole traceback: {shlex.join(['planner', 'show', start.prepared.url, '--traceback'])}"
    return ""


def _train(start: _Start, display: Display) -> None:
    """Hold the run's lease, start or join the cluster, and train.

    Raises:
        KeyboardInterrupt: the run was interrupted.
        PlannerError: the run cannot continue.
    """
    prepared, launch, local = start.prepared, start.launch, start.local
    dispatch.set_environment(start.timings, embedded=local is not None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(ended_like_ctrl_c())
        stop = partial(os.kill, os.getpid(), signal.SIGTERM)  # `nohup` and `&` ignore SIGINT
        stack.enter_context(DriverLease(prepared.run.storage, launch.launch_id, display.say, on_lost=stop))
        stack.enter_context(TrackingChild(prepared.job, prepared.url, display.say))
        watch = stack.enter_context(DriverWatch(start.subject))
        warnings = (f"warning: {text}" for text in prepared.passed_over)
        display.say("\n".join((start.opening, *warnings, *(f"data: {note}" for note in prepared.notes))))
        with display.doing("loading Ray"):
            connection.require_ray(start.address)
        cluster = stack.enter_context(embedded(local, display.say, display.progress)) if local else None
        place = cluster.address if cluster else start.address
        with display.doing(f"connecting to the Ray cluster at {place}"):
            stack.enter_context(_connected(place, watch, verbose=start.verbose, is_embedded=cluster is not None))
        if warning := resource_warning(prepared.job, alive_nodes()):
            display.say(warning)
        if exported := connection.metrics_url():
            display.say(f"metrics for Prometheus: {exported}")
        stack.enter_context(StatusWriter(prepared.run.storage, partial(dispatch.status_of, launch)))
        started = StartedRun(
            run=prepared.run,
            step=prepared.step,
            total_steps=prepared.total_steps,
            state=partial(dispatch.state_of, launch),
            why=partial(dispatch.why_of, launch),
            held_step=partial(dispatch.held_step_of, launch),
            cluster=cluster,
        )
        say = stack.enter_context(display.watch(started))
        stack.enter_context(MetricsExporter(prepared.run, launch, say))
        on_cpu = local is not None and not local.gpus
        dispatch.train_on_ray(launch, on_cpu=on_cpu, embedded=cluster is not None, say=say)


def result_of(prepared: Prepared, newest: Manifest | None, resume_command: str, *, interrupted: bool) -> RunResult:
    """Where the run stands, from its newest commit.

    Raises:
        RunError: it ended before its last step without an interrupt.
    """
    result = RunResult(
        url=prepared.url,
        step=newest.step if newest else 0,
        # Of this launch, because the commit may be from an earlier launch with fewer steps.
        total_steps=prepared.total_steps or (newest.total_steps if newest else 0),
        committed=commit_text(newest, prepared.url, prepared.total_steps),
        resume_command=resume_command,
    )
    if not result.finished and not interrupted:
        raise RunError(f"the workers ended early: {result.committed}. Try again with --verbose: {resume_command}")
    return result


def resource_warning(job: Job, nodes: Sequence[Resources]) -> str:
    """What the run waits for if the nodes have no room for `workers.min`. Empty if they have room."""
    least, wanted = job.workers.min, job.workers.taken
    room = room_for(wanted, nodes)
    if room >= least:
        return ""
    why = f" ({lack})" if (lack := shortage(wanted, nodes)) else ""
    until = "such nodes come, or ask for less" if why else "nodes come"
    has = f"the cluster has room for {counted(room, 'worker')}, and workers.min is {least}"
    return f"waiting: {has}{why}. The run begins when {until}"


@contextlib.contextmanager
def _connected(address: str, watch: DriverWatch, *, verbose: bool, is_embedded: bool) -> Iterator[None]:
    """Connect to the cluster. Meanwhile `watch` watches the Ray processes that this driver depends on."""
    with connection.connected(address, verbose=verbose, embedded=is_embedded):
        gcs, raylet = connection.ray_listeners()
        with watch.watching(RayListeners(gcs=gcs, raylet=raylet, is_embedded=is_embedded)):
            yield
