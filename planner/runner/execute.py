"""Runs a checked start to its end: takes the lease, starts or joins the cluster, and starts the workers."""

import contextlib
import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from planner.base.node_market import ON_DEMAND
from planner.base.text import counted
from planner.dispatch import connection
from planner.dispatch import launch as dispatch
from planner.dispatch.metrics_exporter import MetricsExporter
from planner.dispatch.resources import rented_nodes, room_for, shortage
from planner.errors import ClusterLost, RunError, StoreError, TrainingFailed
from planner.events.stopping import WaitsForFloor
from planner.job import Job
from planner.local_cluster.embedded import EmbeddedCluster
from planner.plan import Resources
from planner.runner.display import Display, StartedRun
from planner.runner.driver_end import (
    DriverWatch,
    RayListeners,
    RunSummary,
    commit_text,
    driver_end_message,
    newest_commit_text,
)
from planner.runner.local import embedded
from planner.runner.signals import ended_like_ctrl_c
from planner.runner.start import SILENT, Start, disk_watch
from planner.runner.tracking_child import TrackingChild
from planner.store.code_failure import read_failure
from planner.store.lease import DriverLease
from planner.store.newest import newest_commit
from planner.store.records import Manifest
from planner.store.run_status import StatusWriter
from planner.store.storage import Storage
from planner.train.setup import Launch
from planner.wording.event_text import text_of


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


def run(start: Start, display: Display = SILENT) -> RunResult:
    """Run to the end, or until Ctrl-C, SIGTERM or SIGHUP. Call it in the main thread.

    Args:
        start: the checked start (see `plan_start`). A finished run starts nothing.
        display: shows the run.

    Raises:
        PlannerError: the run cannot continue.
    """
    if start.finished:
        return result_of(start, start.committed, interrupted=False)
    launch, subject, interrupted = dispatch.new_launch(start.job, start.url, start.accept), _summary(start), False
    try:
        _train(start, launch, display)
    except KeyboardInterrupt:
        interrupted = True
    except ClusterLost as error:
        raise ClusterLost(driver_end_message(subject, str(error))) from error
    except TrainingFailed as error:
        text = f"{error} ({newest_commit_text(start.url, start.total_steps)})"
        raise TrainingFailed(text + _traceback_line(launch)) from error
    except RunError as error:
        if line := _traceback_line(launch):
            raise type(error)(f"{error}{line}") from error
        raise
    with disk_watch(start.url, display.warn):
        newest = newest_commit(start.run).manifest
    return result_of(start, newest, interrupted=interrupted)


def _summary(start: Start) -> RunSummary:
    return RunSummary(
        url=start.url, total_steps=start.total_steps, resume_command=start.resume_command, driver=os.getpid()
    )


def _traceback_line(launch: Launch) -> str:
    """A line that says how to see the traceback of the user's code, if it failed in this launch. Empty if not."""
    with contextlib.suppress(StoreError):
        failure = read_failure(Storage(launch.url))
        if failure and failure.launch == launch.launch_id:
            return f"\nFor the whole traceback: {shlex.join(['planner', 'show', launch.url, '--traceback'])}"
    return ""


def _train(start: Start, launch: Launch, display: Display) -> None:
    """Hold the run's lease, start or join the cluster, and train.

    Raises:
        KeyboardInterrupt: the run was interrupted.
        PlannerError: the run cannot continue.
    """
    storage, local = start.run.storage, start.local
    dispatch.set_environment(dispatch.EMBEDDED if local else dispatch.CLUSTER, embedded=local is not None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(ended_like_ctrl_c())
        stop = partial(os.kill, os.getpid(), signal.SIGTERM)  # `nohup` and `&` ignore SIGINT
        stack.enter_context(DriverLease(storage, launch.launch_id, display.say, on_lost=stop))
        stack.enter_context(TrackingChild(start.job, start.url, display.say))
        watch = stack.enter_context(DriverWatch(_summary(start)))
        warnings = (f"warning: {text}" for text in start.passed_over)
        display.say("\n".join((start.opening, *warnings, *(f"data: {note}" for note in start.data_notes))))
        with display.doing(_connecting(start.address) if start.address else "loading Ray"):
            connection.require_ray(start.address)
        cluster = stack.enter_context(embedded(local, display.say, display.progress)) if local else None
        place = cluster.address if cluster else start.address
        with display.doing(_connecting(place)):
            stack.enter_context(_connected(place, watch, verbose=display.verbose, is_embedded=cluster is not None))
        if warning := room_warning(start.job, rented_nodes()):
            display.say(warning)
        if exported := connection.metrics_url():
            display.say(f"metrics for Prometheus: {exported}")
        stack.enter_context(StatusWriter(storage, partial(dispatch.status_of, launch)))
        say = stack.enter_context(display.watch(_started(start, launch, cluster)))
        stack.enter_context(MetricsExporter(start.run, launch, say))
        dispatch.train_on_ray(
            launch,
            on_cpu=local is not None and not local.gpus,
            embedded=cluster is not None,
            hooks=start.hooks,
            eager=start.eager,
            say=say,
        )


def _connecting(address: str) -> str:
    return f"connecting to the Ray cluster at {address}"


def _started(start: Start, launch: Launch, cluster: EmbeddedCluster | None) -> StartedRun:
    return StartedRun(
        run=start.run,
        launch_id=launch.launch_id,
        step=start.step,
        total_steps=start.total_steps,
        state=partial(dispatch.state_of, launch),
        why=partial(dispatch.why_of, launch),
        held_step=partial(dispatch.held_step_of, launch),
        cluster=cluster,
    )


def result_of(start: Start, newest: Manifest | None, *, interrupted: bool) -> RunResult:
    """Where the run stands, from its newest commit.

    Raises:
        RunError: it ended before its last step without an interrupt.
    """
    result = RunResult(
        url=start.url,
        step=newest.step if newest else 0,
        # Of this launch, because the commit may be from an earlier launch with fewer steps.
        total_steps=start.total_steps or (newest.total_steps if newest else 0),
        committed=commit_text(newest, start.url, start.total_steps),
        resume_command=start.resume_command,
    )
    if not result.finished and not interrupted:
        again = f"Try again with --verbose: {start.resume_command}"
        raise RunError(f"the workers ended early: {result.committed}. {again}")
    return result


def room_warning(job: Job, nodes: Sequence[tuple[Resources, str]]) -> str:
    """What the run waits for if the nodes have no room for `workers.min`. Empty if they have room.

    `nodes` has the resources of each node, and how it is rented.
    """
    return _resource_warning(job, [node for node, _ in nodes]) or _floor_warning(job, nodes)


def _floor_warning(job: Job, nodes: Sequence[tuple[Resources, str]]) -> str:
    wanted, least = job.workers.taken, job.workers.floor
    room = room_for(wanted, [node for node, market in nodes if market == ON_DEMAND])
    if room >= least:
        return ""
    others = room_for(wanted, [node for node, market in nodes if market != ON_DEMAND])
    has_labels = any(market for _, market in nodes)
    return text_of(WaitsForFloor(room=room, least=least, other_room=others, has_labels=has_labels))


def _resource_warning(job: Job, nodes: Sequence[Resources]) -> str:
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
