"""Keepers on a real Ray cluster: each node has one, it is found again, and none outlives its launch."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from live_runs import LIMIT_S, TEST_TIMINGS, Script, make_job, notes, run_of
from resized_run import interrupt

from planner.dispatch import launch as dispatch
from planner.dispatch.keeper_census import Census, Wanted
from planner.dispatch.keepers import KeeperActors, Published, places
from planner.dispatch.mailbox import keepers_key
from planner.dispatch.ray_internal import drain_node, kv_get
from planner.keeper.addresses import Address
from planner.keeper.client import KeeperClient, KeeperGone
from planner.keeper.copies import Copy, CopyKey, Piece
from planner.train.setup import Launch

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

KEY = CopyKey(generation=1, rank=0, slot=9)  # no worker uses this slot


def await_that(condition):
    """The condition's first true value."""
    deadline_s = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "it never came to this"
        time.sleep(0.1)
    return found


@dataclass
class Seen:
    """The run, and what was seen of its keepers."""

    launch: Launch
    folder: Path
    nodes: set[str]
    gone: str = ""
    at_three: tuple[Address, ...] = ()
    named: set[str] = field(default_factory=set)
    again: dict[str, Address] = field(default_factory=dict)
    """what another controller found"""
    holds: bool = False
    """whether that one trusts in all of them"""
    kept: list[Copy] = field(default_factory=list)
    refused: list[Exception] = field(default_factory=list)
    after_the_notice: set[str] = field(default_factory=set)
    has_ended_all: bool = False
    acts_done: int = 0


def published(launch):
    return Published.of_text(kv_get(keepers_key(launch.launch_id)))


def keep_a_copy(address, secret):
    """Through shared memory, as a worker of that node does. Returns what is sealed there."""
    with KeeperClient(address, secret) as client:
        client.room(KEY, 8)[:] = b"a tensor"
        piece = Piece(name="w", dtype="uint8", shape=(8,), start=0, stop=8, offset=0, num_bytes=8)
        client.seal(Copy(key=KEY, run_id="r", step=1, world_size=3, pieces=(piece,)))
        return [copy for copy in client.copies() if copy.key == KEY]


def look_again(seen):
    """What a controller finds that takes the place of the first one."""
    import ray

    found = []
    actors = KeeperActors(seen.launch.launch_id, seen.launch.keeper_secret)
    census = Census(actors, found.append)
    census.order(Wanted(nodes=frozenset(seen.nodes)), places(ray.nodes()))
    await_that(lambda: census.turn() or len(found[-1].addresses) == len(seen.nodes))
    census.mark_start()
    seen.again = {address.node: address for address in found[-1].addresses}
    seen.holds = census.can_hold(seen.nodes)


@pytest.fixture(scope="module")
def seen(whole_cluster, tmp_path_factory):
    """A run at three workers, a notice, two workers, Ctrl-C."""
    cluster = whole_cluster()
    folder = tmp_path_factory.mktemp("kept")
    job = make_job(folder, steps=2000, most=3, every_steps=100)
    launch = dispatch.new_launch(job, job.run_path, frozenset())
    seen = Seen(launch=launch, folder=folder, nodes=set(cluster.nodes()))
    actors = KeeperActors(launch.launch_id, launch.keeper_secret)

    def look():
        seen.at_three = await_that(lambda: len(found := published(launch).addresses) == 3 and found)
        seen.named = set(actors.find())
        look_again(seen)
        seen.kept = [copy for each in seen.at_three for copy in keep_a_copy(each, launch.keeper_secret)]
        try:
            KeeperClient(seen.at_three[0], "another launch's").copies()
        except KeeperGone as error:
            seen.refused.append(error)
        seen.gone = cluster.nodes()[-1]
        drain_node(seen.gone, 60, "test")

    def look_at_two():
        await_that(lambda: seen.gone not in actors.find())
        await_that(lambda: seen.gone not in cluster.nodes())
        seen.after_the_notice = set(actors.find())
        interrupt()

    with Script(job, [(3, 20, look), (2, 20, look_at_two)]) as script, pytest.raises(KeyboardInterrupt):
        dispatch.train_on_ray(launch, TEST_TIMINGS, on_cpu=True, embedded=True)
    seen.acts_done = script.done
    # On a busy machine, Ray ends them some time after it was told to.
    await_that(lambda: not actors.find() and published(launch) == Published())
    seen.has_ended_all = True
    return seen


def test_each_node_has_a_keeper_that_serves_only_its_launch(seen):
    """Under one address, and with room for a copy."""
    assert seen.acts_done == 2
    assert {address.node for address in seen.at_three} == seen.named == seen.nodes
    assert len({(address.host, address.port) for address in seen.at_three}) == 3
    assert [copy.key for copy in seen.kept] == [KEY] * 3
    assert all(copy.pieces[0].digest for copy in seen.kept)
    assert len(seen.refused) == 1


def test_another_controller_finds_the_same_keepers(seen):
    """By name. What they hold is still there."""
    assert seen.acts_done == 2
    assert set(seen.again.values()) == set(seen.at_three)
    assert seen.holds


def test_a_node_with_notice_loses_its_keeper_when_the_others_train(seen):
    """Until then it keeps the node alive. Then Ray ends the node."""
    assert seen.acts_done == 2
    assert seen.after_the_notice == seen.nodes - {seen.gone}


def test_the_stop_before_the_node_goes_is_asked_for_in_memory(seen):
    """The ledger says what the workers were told."""
    assert seen.acts_done == 2
    told = " ".join(notes(seen.launch.job))
    assert "all workers finish their step, then hand it over in memory" in told


def test_no_keeper_outlives_its_launch(seen):
    """Ctrl-C ends them with the workers."""
    assert seen.acts_done == 2
    assert seen.has_ended_all
    assert published(seen.launch) == Published()


def test_the_secret_is_nowhere_in_the_run_folder(seen):
    """Neither in a file nor in a name."""
    assert run_of(seen.launch.job).commits()
    secret = seen.launch.keeper_secret
    assert len(secret) == 64
    for root, folders, files in os.walk(seen.folder):
        for name in (*folders, *files):
            assert secret not in name
        for name in files:
            assert secret.encode() not in (Path(root) / name).read_bytes()
