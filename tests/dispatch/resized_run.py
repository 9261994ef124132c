"""One run that is resized in order, 3 -> 2 -> 3 workers, and what was seen of it: several tests look at it."""

import os
import signal
import time
from dataclasses import dataclass, field
from functools import partial

import pytest
from listeners import listening_addresses
from live_runs import LIMIT_S, TEST_TIMINGS, Script, make_job, processes_of, run_of, workers_of

from planner.dispatch import launch as dispatch
from planner.dispatch.ray_internal import drain_node
from planner.job import Job
from planner.store.run_status import RunStatus, StatusWriter, read_status


@dataclass
class Resized:
    """The run, and what was seen while it went on."""

    job: Job
    launch_id: str
    nodes: set[str]
    gone: str = ""
    """the node that got notice"""
    workers: dict[int, set[int]] = field(default_factory=dict)
    """process ids of the workers at each generation: 1, 2, 3"""
    full: RunStatus | None = None
    """when all three workers trained"""
    rest: RunStatus | None = None
    """when the two others trained on"""
    statuses: list[RunStatus] = field(default_factory=list)
    """each status that was published while this looked"""
    addresses: set[str] = field(default_factory=set)
    """where the driver, the cluster and three workers listened in the midst of it"""
    acts_done: int = 0


def interrupt():
    """End the run that this process drives, as Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


def resize(cluster, folder):
    """Notice to the newest node, its end, a new node, Ctrl-C."""
    job = make_job(folder, steps=2000, most=3, every_steps=100)
    storage = run_of(job).storage
    storage.make_folder("")
    launch = dispatch.new_launch(job, job.run_path, frozenset())
    seen = Resized(job=job, launch_id=launch.launch_id, nodes=set(cluster.nodes()))

    def until(condition):
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            status = read_status(storage)
            if status is not None and (not seen.statuses or seen.statuses[-1] != status):
                seen.statuses.append(status)
            if status is not None and condition(status):
                return status
            assert time.monotonic() < deadline_s, seen.statuses[-1:]
            time.sleep(0.02)

    def train(count):
        return until(lambda status: [worker.state for worker in status.workers] == ["training"] * count)

    def drain():
        seen.workers[1] = set(workers_of(cluster))
        seen.full = train(3)
        seen.gone = cluster.nodes()[-1]
        drain_node(seen.gone, 30, "test")
        until(lambda status: any(node.has_notice and node.node == seen.gone for node in status.nodes))
        until(lambda status: len(status.workers) == 2)

    def replace():
        seen.rest = train(2)
        seen.workers[2] = set(workers_of(cluster))
        cluster.kill_node(seen.gone)
        cluster.add_node()

    def look():
        seen.workers[3] = set(workers_of(cluster))
        seen.addresses = listening_addresses({os.getpid(), *processes_of(cluster)})
        interrupt()

    with (
        StatusWriter(storage, partial(dispatch.status_of, launch), every_s=0.02),
        Script(job, [(3, 20, drain), (2, 20, replace), (3, 20, look)]) as script,
        pytest.raises(KeyboardInterrupt),
    ):
        dispatch.train_on_ray(launch, TEST_TIMINGS, on_cpu=True, embedded=True)
    seen.acts_done = script.done
    return seen
