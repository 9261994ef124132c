"""A cluster with Ray's real autoscaler on this machine, whose nodes come and go as a trace says.

    the caller                                       `python autoscaler_cluster.py`, which leads a session
    AutoscalerCluster  -- stdin: until it closes -->   head: gcs, dashboard, autoscaler -> SpotProvider -> nodes
                       <-- one JSON line: where --

Every port is free when it is chosen, and on 127.0.0.1. What was started is what lives in that session or below it.
"""

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from events import EVENT_S, wait_for
from job_cluster import serve
from spot_trace import Trace

from planner.local_cluster.embedded import ONE_CPU
from planner.local_cluster.environment import LOOPBACK, QUICK_HEALTH_CHECKS, loopback_environment, token_environment
from planner.local_cluster.link import CLOSE_DEADLINE_S
from planner.local_cluster.processes import kill_all

HERE = Path(__file__).parent
# As Ray's provider of processes names them.
_HEAD_ID = "f" * 51 + "00000"
_HEAD_TYPE = "ray.head.default"
# Ray's schema wants them all.
_EMPTY = (
    "cluster_synced_files",
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
    "rsync_exclude",
    "rsync_filter",
)


class AutoscalerCluster:
    """A context manager: a head without room, and whatever nodes the autoscaler starts.

    `max_nodes` is the cluster file's bound. `available` is how many the cloud has: a number, or a trace, whose time
    begins with `begin`. Beside its spot nodes there may be `on_demand` nodes of another type. `notice_s` seconds lie
    between a notice and the node's end; none are given where it is None.
    """

    def __init__(
        self,
        *,
        max_nodes,
        available=1_000_000,
        notice_s=None,
        idle_s=600.0,
        resources=None,
        quick_health_checks=True,
        environment=None,
        nodes_path=None,
        on_demand=0,
    ):
        self.on_demand = on_demand
        self.max_nodes, self.notice_s, self.idle_s = max_nodes, notice_s, idle_s
        self.trace = available if isinstance(available, Trace) else Trace(times_s=(0.0,), counts=(available,))
        self.resources = resources or {"CPU": 1}
        self.nodes_path = os.environ.get("PYTHONPATH", "") if nodes_path is None else nodes_path
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in {"RAY_ADDRESS", "RAY_AUTH_TOKEN"}},
            **loopback_environment(),
            # Behind this process's own token, if the caller has no other.
            **(token_environment() if "RAY_AUTH_TOKEN_PATH" not in (environment or {}) else {}),
            **(QUICK_HEALTH_CHECKS if quick_health_checks else {}),
            **(environment or {}),
        }
        self.address = self.dashboard = ""

    def __enter__(self):
        # Short: Ray's socket paths stay below about 100 characters.
        self.home = Path(tempfile.mkdtemp(prefix="pa-", dir="/tmp"))
        self._log = (self.home / "cluster.log").open("w+b")
        ports = _free_ports(3)
        self.file.write_text(json.dumps(self._cluster_file(ports[0])))
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self.home), *map(str, ports[:2])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={
                **self.environment,
                "PYTHONPATH": os.pathsep.join(
                    [str(HERE), str(HERE.parent / "harness"), str(HERE.parents[1]), self.nodes_path]
                ).rstrip(os.pathsep),
                "RAY_TMPDIR": str(self.home),
                "GLOO_SOCKET_IFNAME": "lo",
                "RAY_FAKE_CLUSTER": "1",
                "RAY_enable_autoscaler_v2": "1",
                "RAY_CLOUD_INSTANCE_ID": _HEAD_ID,
                "RAY_NODE_TYPE_NAME": _HEAD_TYPE,
                "AUTOSCALER_UPDATE_INTERVAL_S": "1",
                "AUTOSCALER_METRIC_PORT": str(ports[2]),
            },
            start_new_session=True,
        )
        try:
            where = self._where()
        except BaseException:
            self.close()
            raise
        self.address, self.dashboard = where["gcs"], f"http://{where['dashboard']}"
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """End all that was started."""
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_DEADLINE_S)
        if self._process.poll() is None:
            kill_all(self._process.pid, CLOSE_DEADLINE_S)
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def _where(self):
        ready = select.select([self._process.stdout], [], [], EVENT_S)[0]
        if line := self._process.stdout.readline() if ready else b"":
            return json.loads(line)
        raise RuntimeError(f"the cluster did not start: {(self.home / 'cluster.log').read_text()[-2000:]}")

    def begin(self):
        """The trace's time begins."""
        (self.home / "begun").touch()

    def offer(self, nodes, notice_s=None):
        """From now on the cloud has so many, whatever the trace says; those it takes back get notice, or none."""
        fresh = self.home / "now.json.new"
        fresh.write_text(json.dumps([nodes, notice_s]))
        fresh.replace(self.home / "now.json")

    @property
    def file(self):
        """The cluster's file, as `ray up` takes it."""
        return self.home / "cluster.json"

    def events(self, *kinds):
        """What the cloud has noted, of these kinds or all, oldest first."""
        path = self.home / "events.jsonl"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [event for event in found if not kinds or event["event"] in kinds]

    def nodes(self):
        """Ids of the nodes that the cloud lets us have, oldest first."""
        gone = {event["node"] for event in self.events("terminated", "killed")}
        return [event["node"] for event in self.events("launched") if event["node"] not in gone]

    def wait_until(self, condition):
        """Raises AssertionError with what happened."""
        wait_for(lambda: condition(self), self.events)

    def _node_type(self, market, most):
        return {
            "resources": {**self.resources, "object_store_memory": ONE_CPU.object_store_bytes},
            "labels": {"ray.io/market-type": market},
            "node_config": {},
            "min_workers": 0,
            "max_workers": most,
        }

    def _cluster_file(self, gcs_port):
        return {
            "cluster_name": "spot",
            "max_workers": self.max_nodes,
            "idle_timeout_minutes": self.idle_s / 60,
            "upscaling_speed": 10,
            "provider": {
                "type": "external",
                "module": "spot_provider.SpotProvider",
                "disable_node_updaters": True,  # they would install Ray, by ssh
                "gcs_address": f"{LOOPBACK}:{gcs_port}",
                "head_node_id": _HEAD_ID,
                "trace": list(zip(self.trace.times_s, self.trace.counts, strict=True)),
                "notice_s": self.notice_s,
                "folder": str(self.home),
                "nodes_path": self.nodes_path,
            },
            "available_node_types": {
                _HEAD_TYPE: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
                "spot": self._node_type("spot", self.max_nodes),
                **({"lasting": self._node_type("on-demand", self.on_demand)} if self.on_demand else {}),
            },
            "head_node_type": _HEAD_TYPE,
            **{key: {} for key in ("auth", "file_mounts")},
            **{key: [] for key in _EMPTY},
            "file_mounts_sync_continuously": False,
        }


def _free_ports(count):
    """Ports of which no two are the same."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


if __name__ == "__main__":
    home, gcs_port, dashboard_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    # Some of Ray's own actors would take the newest cluster of this machine for theirs.
    os.environ["RAY_ADDRESS"] = f"{LOOPBACK}:{gcs_port}"
    serve(
        num_cpus=0,
        gcs_server_port=gcs_port,
        autoscaling_config=f"{home}/cluster.json",
        dashboard_port=dashboard_port,
    )
