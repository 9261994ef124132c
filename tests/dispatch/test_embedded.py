"""The embedded cluster: real Ray nodes on this machine. The drivers are processes of their own."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from events import ended, wait_for
from listeners import LOOPBACK

from planner.errors import RunError
from planner.local_cluster import embedded, link
from planner.local_cluster.embedded import EmbeddedCluster, NodeShape
from planner.local_cluster.processes import members
from planner.local_cluster.supervisor import Supervisor

pytestmark = pytest.mark.ray

ROOT = Path(embedded.__file__).resolve().parents[2]

# What a driver does, from start to close; it prints one JSON object of what it saw.
STORY = """
import json, os, subprocess, sys
from events import ended, wait_for
from listeners import listening_addresses
from planner.local_cluster.embedded import EmbeddedCluster, NodeShape
from planner.local_cluster.environment import driver_environment
from planner.local_cluster.processes import members

os.environ.update(driver_environment())
seen = {}

# Ours, none, a wrong one.
TOKENS = [{}, {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""}, {"RAY_AUTH_TOKEN": "0" * 64}]
ASK = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1]).internal_kv_keys(b'', None, 5)"


def stranger(address, **token):
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", ASK, address]
    return subprocess.Popen(command, env={**os.environ, **token}, stdout=pipe, stderr=pipe, text=True)


shape = NodeShape(cpus=1, gpus=1, resources={"slot": 2})
with EmbeddedCluster(num_nodes=2, shape=shape) as cluster:
    leader = cluster._link._process.pid
    seen["home"] = str(cluster._link._home)
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=cluster.address, log_to_driver=False)

    @ray.remote(num_cpus=0)
    class Actor:
        def pid(self):
            return os.getpid()

    alive = lambda: {n["NodeID"] for n in ray.nodes() if n["Alive"]}
    head = ray.get_runtime_context().get_node_id()
    seen["address"], seen["started"] = cluster.address, cluster.nodes()
    seen["alive_at_start"], seen["head"] = sorted(alive()), head
    seen["resources"] = ray.cluster_resources()
    answers = [ended(process) for process in [stranger(cluster.address, **token) for token in TOKENS]]
    seen["strangers"] = [(code, "nauthenticated" in err) for code, _, err in answers]
    seen["listeners"] = sorted(listening_addresses(members(leader)))
    only_there = NodeAffinitySchedulingStrategy(cluster.nodes()[0], soft=False)
    actor = Actor.options(scheduling_strategy=only_there).remote()
    seen["ran_there"] = ray.get(actor.pid.remote())
    before = members(leader)
    seen["killed"] = cluster.kill_node(cluster.nodes()[0])
    wait_for(lambda: seen["ran_there"] not in members(leader))
    seen["ended"] = sorted(before - members(leader))
    wait_for(lambda: seen["killed"] not in alive())
    seen["added"] = cluster.add_node()
    wait_for(lambda: seen["added"] in alive())
    seen["removed"] = cluster.remove_node()
    seen["nodes_at_end"] = cluster.nodes()
    ray.shutdown()
seen["left"] = sorted(members(leader))
print("SEEN", json.dumps(seen))
"""

HOLDER = """
import json, sys
from planner.local_cluster.embedded import EmbeddedCluster
with EmbeddedCluster(num_nodes=0) as cluster:
    print(json.dumps([cluster.address, cluster._link._process.pid, str(cluster._link._home)]), flush=True)
    sys.stdin.read()
"""


def started(source):
    """A driver: a process with its own Ray."""
    here = Path(__file__).parent
    paths = [ROOT, here, here.parent / "harness", *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-c", source],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def story():
    code, out, err = ended(started(STORY))
    assert code == 0, err[-4000:]
    lines = [line for line in out.splitlines() if line.startswith("SEEN ")]
    return json.loads(lines[-1].removeprefix("SEEN "))


@contextmanager
def holder():
    """A driver that holds a cluster and does nothing: (its process, supervisor's pid, its directory)."""
    process = started(HOLDER)
    try:
        _, leader, home = json.loads(process.stdout.readline())
        yield process, leader, Path(home)
    finally:
        process.kill()
        process.communicate()


class TestStory:
    def test_the_driver_sees_the_nodes_and_what_they_offer(self, story):
        assert story["address"].startswith("127.0.0.1:")
        assert sorted([story["head"], *story["started"]]) == story["alive_at_start"]
        wanted = {"CPU": 2, "GPU": 2, "slot": 4}
        assert {name: story["resources"][name] for name in wanted} == wanted

    def test_no_process_of_the_cluster_listens_beyond_loopback(self, story):
        assert story["listeners"]
        assert set(story["listeners"]) <= LOOPBACK

    def test_the_machines_other_users_are_kept_out_by_a_token(self, story):
        """Loopback is everybody's on this machine."""
        assert story["strangers"] == [[0, False], [1, True], [1, True]]

    def test_a_killed_node_ends_with_all_that_ran_on_it(self, story):
        assert story["killed"] == story["started"][0]
        assert story["ran_there"] in story["ended"]
        assert len(story["ended"]) >= 2  # its raylet, too

    def test_nodes_are_named_oldest_first_and_the_last_one_goes_by_default(self, story):
        assert story["added"] not in story["started"]
        assert story["removed"] == story["added"]
        assert story["nodes_at_end"] == story["started"][1:]

    def test_closing_leaves_nothing(self, story):
        assert story["left"] == []
        assert not Path(story["home"]).exists()


def test_a_killed_supervisor_or_driver_takes_only_its_own_cluster_along():
    """Two clusters side by side: the supervisor of one is killed, then the driver of the other. Nothing is left."""
    with holder() as (driver, other, others_home):
        with EmbeddedCluster(num_nodes=0) as cluster:
            leader, home = cluster._link._process.pid, cluster._link._home
            os.kill(leader, signal.SIGKILL)
            with pytest.raises(RunError, match=r"the supervisor has ended|Broken pipe"):
                cluster.add_node()
        assert not members(leader)
        assert not home.exists()

        before = members(other)
        assert len(before) > 1  # a gcs_server and a raylet at least
        driver.kill()
        driver.wait()
        wait_for(lambda: not members(other) and not Path(f"/proc/{other}").exists())
        wait_for(lambda: not others_home.exists())


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

    def test_a_start_in_which_a_process_of_ray_ends_is_tried_again(self, monkeypatch, tmp_path):
        """Whatever Ray says about it."""
        fake = fake_ray(tmp_path, failures=1, error='KeyError("node")', ends=True)
        monkeypatch.setattr(link, "supervisor_environment", with_path(fake))
        said = []
        with EmbeddedCluster(num_nodes=0, say=said.append):
            pass
        assert [line.partition(" (")[0] for line in said] == ["the local Ray cluster did not start"]

    @pytest.mark.parametrize(
        ("error", "says"),
        [
            ('ValueError("memory is 0.\\nSee https://docs")', "ValueError: memory is 0"),
            (
                'AssertionError("`CPU` cannot be a custom resource")',
                "AssertionError: `CPU` cannot be a custom resource",
            ),
            ('ValueError("timed out is no name")', "ValueError: timed out is no name"),
            ('PermissionError(13, "Permission denied")', "PermissionError: [Errno 13] Permission denied"),
        ],
    )
    def test_any_other_error_is_told_at_once(self, monkeypatch, tmp_path, error, says):
        """One start, one sentence, and nothing about a busy machine."""
        monkeypatch.setattr(link, "supervisor_environment", with_path(fake_ray(tmp_path, failures=9, error=error)))
        said = []
        with pytest.raises(RunError) as failed:
            EmbeddedCluster(say=said.append).start()
        assert str(failed.value) == (
            f"the local Ray cluster did not start: the embedded cluster: start: Ray says {says}. Correct this, and "
            "run again"
        )
        assert (said, (tmp_path / "heads").read_text()) == ([], "x")

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
            wait_for(lambda: not members(leader))
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

    def test_no_answer_in_time_is_an_error_and_closes(self, monkeypatch, tmp_path):
        """Nothing else takes time: this head never starts."""
        monkeypatch.setattr(link, "supervisor_environment", with_path(fake_ray(tmp_path, hangs=True)))
        monkeypatch.setattr(embedded, "START_DEADLINE_S", 0.01)
        cluster = EmbeddedCluster()
        with pytest.raises(RunError, match=r"start: no answer in time\. This machine is"):
            cluster.start()
        assert cluster._link is None

    def test_an_unknown_node_is_named(self):
        supervisor = Supervisor()
        answer = supervisor.answer({"op": "kill", "node_id": "abc"})
        assert answer == {"error": "there is no node abc. The nodes are []", "is_late": False}


def with_path(first):
    inherited = link.supervisor_environment

    def environment_of(home, health_checks):
        wanted = inherited(home, health_checks)
        return {**wanted, "PYTHONPATH": os.pathsep.join([str(first), wanted["PYTHONPATH"]])}

    return environment_of


# What `Cluster` does when Ray's own limits are too short: it raises, and a process of the node that failed lives on.
TOO_SHORT = 'Exception("The current node timed out during startup.\\nThis could happen because ...")'
FAKE_CLUSTER = """
import os, pathlib, select, subprocess, types
FAILURES, NODE_FAILURES, HANGS, COUNTS = {failures}, {node_failures}, {hangs}, pathlib.Path({counts!r})


def fail(what, most):
    with (COUNTS / what).open("a") as stream:
        stream.write("x")
    if (COUNTS / what).stat().st_size <= most:
        process = subprocess.Popen({command})
        if {ends}:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        raise {error}


class Cluster:
    address = "127.0.0.1:1"

    def __init__(self, **arguments):
        if HANGS:
            select.select([0], [], [])  # until its driver has let go
        fail("heads", FAILURES)

    def add_node(self, **arguments):
        fail("nodes", NODE_FAILURES)
        raylet = types.SimpleNamespace(process=subprocess.Popen(["true"]))
        raylet.process.wait()
        return types.SimpleNamespace(node_id="abc", all_processes={{"raylet": [raylet]}})
"""


def fake_ray(folder, *, failures=0, node_failures=0, hangs=False, error=TOO_SHORT, ends=False):
    """A folder with a package `ray` whose first heads and nodes do not start, or that waits for ever.

    A failed start raises `error`. Its process has ended if `ends`, else it lives on.
    """
    package = folder / "ray"
    package.mkdir()
    (package / "__init__.py").touch()
    source = FAKE_CLUSTER.format(
        failures=failures,
        node_failures=node_failures,
        hangs=hangs,
        counts=str(folder),
        error=error,
        ends=ends,
        command=["true"] if ends else ["sleep", "600"],
    )
    (package / "cluster_utils.py").write_text(source)
    return folder
