"""The embedded cluster: real Ray nodes on this machine. The drivers are processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from listeners import LOOPBACK

from planner.errors import RunError
from planner.local_cluster import embedded, link
from planner.local_cluster.embedded import EmbeddedCluster, NodeShape
from planner.local_cluster.processes import members
from planner.local_cluster.supervisor import Supervisor

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

ROOT = Path(embedded.__file__).resolve().parents[2]

# What a driver does, from start to close; it prints one JSON object of what it saw.
STORY = """
import json, os, subprocess, sys, time
from pathlib import Path
from listeners import listening_addresses
from planner.local_cluster.embedded import EmbeddedCluster, NodeShape
from planner.local_cluster.environment import driver_environment
from planner.local_cluster.processes import members

os.environ.update(driver_environment())
os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.25"
out, seen = Path(sys.argv[1]), {}


def wait(condition, deadline_s=300):
    deadline = time.monotonic() + deadline_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def train(config):
    import torch, torch.distributed as dist, ray.train
    ones = torch.ones(1)
    dist.all_reduce(ones)
    rank = ray.train.get_context().get_world_rank()
    Path(config["out"], f"rank{rank}").write_text(f"{dist.get_backend()} {ones.item():g}")
    names = "MASTER_ADDR RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK ACCELERATE_TORCH_DEVICE".split()
    Path(config["out"], f"variables{rank}").write_text(" ".join(os.environ[name] for name in names))


# Ours, none, a wrong one.
TOKENS = [{}, {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""}, {"RAY_AUTH_TOKEN": "0" * 64}]
ASK = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1]).internal_kv_keys(b'', None, 5)"


def stranger(address, **token):
    asked = subprocess.run(
        [sys.executable, "-c", ASK, address], env={**os.environ, **token}, capture_output=True, text=True, timeout=60
    )
    return asked.returncode, "nauthenticated" in asked.stderr


shape = NodeShape(cpus=1, gpus=1, resources={"slot": 2})
with EmbeddedCluster(num_nodes=2, shape=shape) as cluster:
    leader = cluster._link._process.pid
    seen["home"] = str(cluster._link._home)
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from planner.dispatch.ray_internal.loopback import loopback_torch_config

    ray.init(address=cluster.address, log_to_driver=False)
    alive = lambda: {n["NodeID"] for n in ray.nodes() if n["Alive"]}
    head = ray.get_runtime_context().get_node_id()
    seen["address"], seen["started"] = cluster.address, cluster.nodes()
    seen["alive_at_start"], seen["head"] = sorted(alive()), head
    seen["resources"] = ray.cluster_resources()
    TorchTrainer(
        train,
        train_loop_config={"out": str(out)},
        torch_config=loopback_torch_config("gloo", 60),
        scaling_config=ScalingConfig(num_workers=(1, 2), resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=str(out / "runs")),
    ).fit()
    seen["strangers"] = [stranger(cluster.address, **token) for token in TOKENS]
    seen["listeners"] = sorted(listening_addresses(members(leader)))
    before = members(leader)
    seen["killed"] = cluster.kill_node(cluster.nodes()[0])
    seen["num_ended"] = len(before - members(leader))
    seen["seen_dead"] = wait(lambda: seen["killed"] not in alive())
    seen["added"] = cluster.add_node()
    seen["seen_added"] = wait(lambda: seen["added"] in alive())
    seen["removed"] = cluster.remove_node()
    seen["nodes_at_end"] = cluster.nodes()
    ray.shutdown()
seen["left"] = sorted(members(leader))
print("SEEN", json.dumps(seen))
"""

HOLDER = """
import sys, time
from planner.local_cluster.embedded import EmbeddedCluster
with EmbeddedCluster(num_nodes=1) as cluster:
    print(json.dumps([cluster.address, cluster._link._process.pid, str(cluster._link._home)]), flush=True)
    time.sleep(600)
"""


def wait(condition, deadline_s=300):
    deadline = time.monotonic() + deadline_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def command(source, *arguments):
    return [sys.executable, "-c", "import json\n" + source, *arguments]


def environment():
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    }


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    out = tmp_path_factory.mktemp("story")
    driver = subprocess.run(
        command(STORY, str(out)),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr[-4000:]
    lines = [line for line in driver.stdout.splitlines() if line.startswith("SEEN ")]
    return {**json.loads(lines[-1].removeprefix("SEEN ")), "out": out}


@pytest.fixture
def holder():
    """A driver that holds a cluster and does nothing: (its process, supervisor's pid, its directory)."""
    process = subprocess.Popen(command(HOLDER), env=environment(), stdout=subprocess.PIPE, text=True)
    _, leader, home = json.loads(process.stdout.readline())
    yield process, leader, Path(home)
    process.kill()
    process.wait()
    process.stdout.close()


class TestStory:
    def test_the_driver_sees_the_nodes_and_what_they_offer(self, story):
        assert story["address"].startswith("127.0.0.1:")
        assert sorted([story["head"], *story["started"]]) == story["alive_at_start"]
        wanted = {"CPU": 2, "GPU": 2, "slot": 4}
        assert {name: story["resources"][name] for name in wanted} == wanted

    def test_two_workers_train_over_gloo(self, story):
        assert [(story["out"] / f"rank{rank}").read_text() for rank in range(2)] == ["gloo 2"] * 2

    def test_the_workers_find_the_variables_that_torch_programs_read(self, story):
        """With `loopback_torch_config` as with Ray's own; nodes of one address are one machine to Ray."""
        assert [(story["out"] / f"variables{rank}").read_text() for rank in range(2)] == [
            f"127.0.0.1 {rank} 2 {rank} 2 0 cpu" for rank in range(2)
        ]

    def test_no_process_of_the_cluster_listens_beyond_loopback(self, story):
        assert story["listeners"]
        assert set(story["listeners"]) <= LOOPBACK

    def test_the_machines_other_users_are_kept_out_by_a_token(self, story):
        """Loopback is everybody's on this machine."""
        assert story["strangers"] == [[0, False], [1, True], [1, True]]

    def test_a_killed_node_is_seen_dead_with_all_that_ran_on_it(self, story):
        assert story["killed"] == story["started"][0]
        assert story["seen_dead"]
        assert story["num_ended"] >= 2  # the raylet and at least one agent or worker of its own

    def test_an_added_node_is_seen_alive(self, story):
        assert story["added"] not in story["started"]
        assert story["seen_added"]

    def test_nodes_are_named_oldest_first_and_the_last_one_goes_by_default(self, story):
        assert story["removed"] == story["added"]
        assert story["nodes_at_end"] == story["started"][1:]

    def test_closing_leaves_nothing(self, story):
        assert story["left"] == []
        assert not Path(story["home"]).exists()


class TestSuddenEnds:
    def test_a_killed_driver_leaves_nothing(self, holder):
        process, leader, home = holder
        assert len(members(leader)) >= 5
        process.kill()
        process.wait()
        assert wait(lambda: not members(leader) and not Path(f"/proc/{leader}").exists())
        assert wait(lambda: not home.exists())

    def test_two_clusters_run_side_by_side_and_a_killed_supervisor_takes_only_its_own_along(self, holder):
        _, other, _ = holder
        with EmbeddedCluster(num_nodes=0) as cluster:
            leader, home = cluster._link._process.pid, cluster._link._home
            os.kill(leader, signal.SIGKILL)
            with pytest.raises(RunError, match=r"the supervisor has ended|Broken pipe"):
                cluster.add_node()
        assert not members(leader)
        assert not home.exists()
        assert len(members(other)) >= 5


class TestErrors:
    @pytest.mark.parametrize("amount", [-1, 0.5])
    def test_a_node_offers_whole_amounts(self, amount):
        with pytest.raises(ValueError, match="slot"):
            NodeShape(cpus=1, resources={"slot": amount})

    def test_a_cluster_must_be_entered(self):
        with pytest.raises(RunError, match="enter its context"):
            EmbeddedCluster().add_node()

    def test_a_start_that_fails_in_ray_is_tried_again(self, monkeypatch, tmp_path):
        """A machine that is busy for a while: the third start is in time, and nothing is left of the others."""
        monkeypatch.setattr(link, "supervisor_environment", with_path(fake_ray(tmp_path, failures=2)))
        said = []
        cluster = EmbeddedCluster(num_nodes=0, say=said.append)
        with cluster:
            assert cluster.address == "127.0.0.1:1"
        assert said == [
            "the local Ray cluster did not start (the embedded cluster: start: Ray says Exception: The current node "
            f"timed out during startup): attempt {number} of 3"
            for number in (2, 3)
        ]

    def test_a_node_that_fails_while_the_cluster_starts_is_no_end(self, monkeypatch, tmp_path):
        """All is begun again: a half-started node may be in the cluster's table."""
        monkeypatch.setattr(link, "supervisor_environment", with_path(fake_ray(tmp_path, node_failures=1)))
        said = []
        with EmbeddedCluster(num_nodes=1, say=said.append) as cluster:
            assert cluster.nodes() == []  # the fake's raylets have ended at once
        assert len(said) == 1
        assert "the embedded cluster: add: Ray says Exception" in said[0]

    def test_a_node_that_fails_later_leaves_the_cluster_and_no_process(self, monkeypatch, tmp_path):
        """What Ray had started of it is killed."""
        monkeypatch.setattr(link, "supervisor_environment", with_path(fake_ray(tmp_path, node_failures=1)))
        with EmbeddedCluster(num_nodes=0) as cluster:
            leader = cluster._link._process.pid
            with pytest.raises(RunError, match=r"^the embedded cluster: add: Ray says Exception: The current node"):
                cluster.add_node()
            assert wait(lambda: not members(leader))
            assert cluster.nodes() == []

    @pytest.mark.parametrize(
        ("load", "says"),
        [
            (23.0, "This machine is busy (load 23 on 2 cores): run again when it is less busy"),
            (0.4, "This machine is not busy (load 0 on 2 cores): check its memory and the free space in /tmp"),
        ],
    )
    def test_what_never_starts_is_one_sentence(self, monkeypatch, tmp_path, load, says):
        """With what Ray says, and no traceback; `load` is the machine's."""
        monkeypatch.setattr(link, "supervisor_environment", with_path(fake_ray(tmp_path, failures=9)))
        monkeypatch.setattr(embedded.os, "getloadavg", lambda: (load, 1.0, 1.0))
        monkeypatch.setattr(embedded.os, "cpu_count", lambda: 2)
        with pytest.raises(RunError) as failed:
            EmbeddedCluster().start()
        assert str(failed.value) == (
            "the local Ray cluster did not start in 3 attempts: the embedded cluster: start: Ray says Exception: The "
            f"current node timed out during startup. {says}"
        )

    def test_no_answer_in_time_is_an_error_and_closes(self, monkeypatch):
        monkeypatch.setattr(embedded, "START_DEADLINE_S", 0.01)
        cluster = EmbeddedCluster()
        with pytest.raises(RunError, match=r"start: no answer in time\. This machine is"):
            cluster.start()
        assert cluster._link is None

    def test_an_unknown_node_is_named(self):
        supervisor = Supervisor()
        answer = supervisor.answer({"op": "kill", "node_id": "abc"})
        assert answer == {"error": "there is no node abc. The nodes are []"}


def with_path(first):
    inherited = link.supervisor_environment

    def environment_of(home, health_checks):
        wanted = inherited(home, health_checks)
        return {**wanted, "PYTHONPATH": os.pathsep.join([str(first), wanted["PYTHONPATH"]])}

    return environment_of


# What `Cluster` does when Ray's own limits are too short: it raises, and a process of the node that failed lives on.
FAKE_CLUSTER = """
import pathlib, subprocess, types
FAILURES, NODE_FAILURES, COUNTS = {failures}, {node_failures}, pathlib.Path({counts!r})


def fail(what, most):
    with (COUNTS / what).open("a") as stream:
        stream.write("x")
    if (COUNTS / what).stat().st_size <= most:
        subprocess.Popen(["sleep", "600"])
        raise Exception("The current node timed out during startup.\\nThis could happen because ...")


class Cluster:
    address = "127.0.0.1:1"

    def __init__(self, **arguments):
        fail("heads", FAILURES)

    def add_node(self, **arguments):
        fail("nodes", NODE_FAILURES)
        raylet = types.SimpleNamespace(process=subprocess.Popen(["true"]))
        raylet.process.wait()
        return types.SimpleNamespace(node_id="abc", all_processes={{"raylet": [raylet]}})
"""


def fake_ray(folder, *, failures=0, node_failures=0):
    """A folder with a package `ray` whose first heads and nodes do not start."""
    package = folder / "ray"
    package.mkdir()
    (package / "__init__.py").touch()
    source = FAKE_CLUSTER.format(failures=failures, node_failures=node_failures, counts=str(folder))
    (package / "cluster_utils.py").write_text(source)
    return folder
