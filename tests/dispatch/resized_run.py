"""One run that is resized, 3 -> 2 -> 3 workers, and interrupted. Several tests look at what was seen of it.

The machine of one node gets notice of its cloud, and `planner notice-agent` passes that on. Ray ends the node, another
one comes, and Ctrl-C comes while a commit is being written.
"""

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from events import wait_for
from held_writes import Gate
from listeners import listening_addresses
from live_runs import Script, make_job, processes_of, run_of, train, workers_of
from metadata_server import AwsMetadata
from told_hooks import STOPS, told_hooks

from planner.dispatch import launch as dispatch
from planner.dispatch.keeper_census import Census, Wanted
from planner.dispatch.keepers import KeeperActors, Published, places
from planner.dispatch.mailbox import keepers_key
from planner.dispatch.ray_internal import kv_get
from planner.job import Job
from planner.keeper.addresses import Address
from planner.keeper.client import KeeperClient
from planner.keeper.copies import Copy, CopyKey, Piece
from planner.keeper.errors import KeeperGone
from planner.store.run_status import RunStatus, StatusWriter, read_status
from planner.train.setup import Launch

_NO_COMMIT = 1_000_000
KEY = CopyKey(generation=1, rank=0, slot=9)  # no worker uses this slot


@dataclass
class SeenKeepers:
    """What was seen of the run's keepers."""

    at_three: tuple[Address, ...] = ()
    named: set[str] = field(default_factory=set)
    again: dict[str, Address] = field(default_factory=dict)
    """what another controller found"""
    holds: bool = False
    """whether that one trusts in all of them"""
    kept: list[Copy] = field(default_factory=list)
    refused: list[Exception] = field(default_factory=list)
    after_the_notice: set[str] = field(default_factory=set)
    after_the_end: set[str] = field(default_factory=set)
    published_at_the_end: Published | None = None


@dataclass
class SeenAgent:
    """What was seen of `planner notice-agent`, and of the metadata server that it asked."""

    said: str = ""
    code: int | None = None
    asked: set[str] = field(default_factory=set)


@dataclass
class Resized:
    """The run, and what was seen while it went on."""

    folder: Path
    launch: Launch
    nodes: set[str]
    gone: str
    """the node that gets notice"""
    workers: dict[int, set[int]] = field(default_factory=dict)
    """process ids of the workers at each generation: 1, 2, 3"""
    variables: dict[str, str] = field(default_factory=dict)
    """worker and size, such as 0of3 -> torch's backend, and the values of `told_hooks.VARIABLES`"""
    full: RunStatus | None = None
    """when all three workers trained"""
    stopping: RunStatus | None = None
    """when they had been told to stop"""
    rest: RunStatus | None = None
    """when the two others trained on"""
    launches: set[str] = field(default_factory=set)
    """of all statuses that were seen"""
    addresses: set[str] = field(default_factory=set)
    """where the driver, the cluster and three workers listened in the midst of it"""
    before_the_stop: list[str] = field(default_factory=list)
    """the commits that there were when the workers waited for the one in flight"""
    keepers: SeenKeepers = field(default_factory=SeenKeepers)
    agent: SeenAgent = field(default_factory=SeenAgent)
    acts_done: int = 0

    @property
    def job(self) -> Job:
        return self.launch.job


def resize(cluster, folder):
    """Notice to the newest node, its end, a new node, Ctrl-C."""
    job = make_job(folder, steps=_NO_COMMIT, most=3, every_steps=_NO_COMMIT)
    run_of(job).storage.make_folder("")
    launch = dispatch.new_launch(job, job.run_path, frozenset())
    seen = Resized(folder=folder, launch=launch, nodes=set(cluster.nodes()), gone=cluster.nodes()[-1])
    with AwsMetadata() as server, agent(cluster, seen.gone, server, folder) as (process, said):
        _train(cluster, seen, server, said)
        seen.agent.code, seen.agent.said = wait_for(
            lambda: process.poll() is not None and (process.poll(), said()), said
        )
        seen.agent.asked = {path for _, path, _ in server.asked}
    actors = KeeperActors(launch.launch_id, launch.keeper_secret)
    # On a busy machine, Ray ends them some time after it was told to.
    wait_for(lambda: not actors.find())
    seen.keepers.after_the_end, seen.keepers.published_at_the_end = set(actors.find()), published(launch)
    for file in folder.glob("variables*"):
        seen.variables[file.name.removeprefix("variables")] = file.read_text()
    return seen


def _train(cluster, seen, server, said):
    """The run, in the main thread, while another one acts."""
    launch, run = seen.launch, run_of(seen.job)
    writes, stops = Gate(seen.folder), Gate(seen.folder, STOPS)
    stops.close()

    def until(condition):
        def fits():
            status = read_status(run.storage)
            if status is None:
                return None
            seen.launches.add(status.launch)
            return status if condition(status) else None

        return script.wait_for(fits, lambda: read_status(run.storage))

    def all_are(state, count):
        return until(lambda status: [worker.state for worker in status.workers] == [state] * count)

    def give_notice():
        seen.workers[1] = set(workers_of(cluster))
        seen.full = all_are("training", 3)
        look_at_keepers(seen)
        script.wait_for(lambda: "watching" in said(), said)
        server.take(in_s=3600)  # what a busy machine needs, and more
        until(lambda status: any(node.has_notice and node.node == seen.gone for node in status.nodes))
        seen.stopping = all_are("stopping", 3)
        stops.open()

    def replace():
        seen.rest = all_are("training", 2)
        seen.workers[2] = set(workers_of(cluster))
        actors = KeeperActors(launch.launch_id, launch.keeper_secret)
        script.wait_for(lambda: seen.gone not in actors.find())
        script.wait_for(lambda: seen.gone not in cluster.nodes())
        seen.keepers.after_the_notice = set(actors.find())
        script.wait_for(run.commits)
        writes.close()
        cluster.add_node()

    def end():
        script.wait_for((seen.folder / "writing").exists)
        seen.workers[3] = set(workers_of(cluster))
        seen.addresses = listening_addresses({os.getpid(), *processes_of(cluster)})
        script.interrupt()
        script.wait_for((seen.folder / "waited_for").exists)
        seen.before_the_stop = run.commits()
        writes.open()

    acts = [(3, 3, give_notice), (2, 3, replace), (3, 3, end)]
    with (
        StatusWriter(run.storage, partial(dispatch.status_of, launch), every_s=0.02),
        Script(seen.job, acts) as script,
        pytest.raises(KeyboardInterrupt),
    ):
        # Whether a resize pays is no question here.
        train(launch, eager=True, hooks=partial(told_hooks, str(seen.folder)))
    seen.acts_done = script.done


@contextmanager
def agent(cluster, node, server, folder, *options):
    """`planner notice-agent` of one node's machine: the process, and what it has written so far."""
    log = folder / "notice-agent.log"
    where = ["--address", cluster.address, "--node-id", node, "--endpoint", server.url]
    command = [sys.executable, "-m", "planner.cli", "notice-agent", *where, *options]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield process, log.read_text
    finally:
        process.kill()
        process.wait()


# -- keepers


def published(launch):
    """The keepers that the controller tells workers of."""
    return Published.of_text(kv_get(keepers_key(launch.launch_id)))


def look_at_keepers(seen):
    """Ask the keepers of three nodes for all that they should and should not do."""
    launch, keepers = seen.launch, seen.keepers
    keepers.at_three = wait_for(lambda: len(found := published(launch).addresses) == 3 and found)
    keepers.named = set(KeeperActors(launch.launch_id, launch.keeper_secret).find())
    _look_again(seen)
    keepers.kept = [copy for each in keepers.at_three for copy in _keep_a_copy(each, launch.keeper_secret)]
    try:
        KeeperClient(keepers.at_three[0], "another launch's").copies()
    except KeeperGone as error:
        keepers.refused.append(error)


def _keep_a_copy(address, secret):
    """Through shared memory, as a worker of that node does. Returns what is sealed there."""
    with KeeperClient(address, secret) as client:
        client.room(KEY, 8)[:] = b"a tensor"
        piece = Piece(name="w", dtype="uint8", shape=(8,), start=0, stop=8, offset=0, num_bytes=8)
        client.seal(Copy(key=KEY, run_id="r", step=1, world_size=3, pieces=(piece,)))
        return [copy for copy in client.copies() if copy.key == KEY]


def _look_again(seen):
    """What a controller finds that takes the place of the first one."""
    import ray

    found = []
    actors = KeeperActors(seen.launch.launch_id, seen.launch.keeper_secret)
    actors.publish = found.append  # the run's own controller tells the workers
    census = Census(actors)
    census.order(Wanted(nodes=frozenset(seen.nodes)), places(ray.nodes()))
    wait_for(lambda: census.turn() or len(found[-1].addresses) == len(seen.nodes))
    census.mark_start()
    seen.keepers.again = {address.node: address for address in found[-1].addresses}
    seen.keepers.holds = census.can_hold(seen.nodes)
