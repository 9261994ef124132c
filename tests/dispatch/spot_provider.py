"""A cloud of spot machines on this one, for Ray's autoscaler: it has at each moment what a trace says.

Ray's own provider for tests starts nodes as processes; this one refuses more than there are, gives notice to those that
are taken back, and kills them when the notice is over. It lives in the autoscaler's process on the head.
"""

import contextlib
import json
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._raylet import GcsClient
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.autoscaler.tags import TAG_RAY_USER_NODE_TYPE
from spot_trace import Trace

from planner.dispatch.ray_internal import request_drain
from planner.local_cluster.processes import _processes, kill_tree

_TICK_S = 0.05


class SpotProvider(FakeMultiNodeProvider):
    """Ray's provider of processes with an end to its capacity, and a log of what it was asked for.

    Beside Ray's own, `provider` in the cluster file has

        trace      [[time_s, available_nodes], ...]
        notice_s   from a notice to the node's end; null: no notice is given
        folder     where `begun` appears when the trace's time begins, and where `events.jsonl` is written;
                   `now.json` in it, [available_nodes, notice_s], takes the trace's place from then on
    """

    def __init__(self, provider_config, cluster_name):
        super().__init__(provider_config, cluster_name)
        times_s, counts = zip(*provider_config["trace"], strict=True)
        self._trace = Trace(times_s=times_s, counts=counts)
        self._trace_notice_s = provider_config["notice_s"]
        self._begun = Path(provider_config["folder"]) / "begun"
        self._now = Path(provider_config["folder"]) / "now.json"
        self._events = Path(provider_config["folder"]) / "events.jsonl"
        self._taken = {}  # cloud's id -> monotonic second at which it ends
        self._dice = random.Random(7)
        # One by one: two at once disturb each other.
        self._starts = ThreadPoolExecutor(max_workers=1)
        # What this process needs to find this module is not for nodes.
        os.environ["PYTHONPATH"] = provider_config["nodes_path"]
        threading.Thread(target=self._replay, daemon=True).start()

    # -- asked by the autoscaler

    def create_node_with_resources_and_labels(self, node_config, tags, count, resources, labels):  # noqa: ARG002
        """Start as many as there are. As in a cloud, machines are listed at once, and their Ray comes later."""
        self._note("asked", nodes=count)
        for _ in range(count):
            with self.lock:
                if self._num_held >= self._available:
                    self._note("refused", available=self._available)
                    raise RuntimeError(f"InsufficientInstanceCapacity: there are {self._available}")
                cloud_id = self._next_hex_node_id()
                self._nodes[cloud_id] = {"tags": dict(tags), "node": None}
            self._starts.submit(self._start, cloud_id, tags, resources, labels)

    def _start(self, cloud_id, tags, resources, labels):
        offers = dict(resources)
        params = RayParams(
            min_worker_port=0,
            max_worker_port=0,
            node_ip_address="127.0.0.1",
            node_manager_port=0,
            dashboard_port=None,
            dashboard_agent_listen_port=None,
            include_log_monitor=False,
            num_cpus=offers.pop("CPU", 0),
            num_gpus=offers.pop("GPU", 0),
            object_store_memory=offers.pop("object_store_memory", None),
            resources=offers,
            labels=labels,
            redis_address=self._gcs_address,
            gcs_address=self._gcs_address,
            # A folder of its own: else the second node to need a job's files deletes them under the first.
            runtime_env_dir_name=f"runtime_resources_{cloud_id[-5:]}",
            env_vars={"RAY_CLOUD_INSTANCE_ID": cloud_id, "RAY_NODE_TYPE_NAME": tags[TAG_RAY_USER_NODE_TYPE]},
        )
        before = _children()
        try:
            node = Node(params, head=False, shutdown_at_exit=False, spawn_reaper=False)
        except Exception as error:  # noqa: BLE001  # a machine that never comes up; the autoscaler asks for another
            for pid in _children() - before:
                kill_tree(pid)
            with self.lock:
                self._nodes.pop(cloud_id, None)
                self._taken.pop(cloud_id, None)
            self._note("failed", reason=str(error))
            return
        self._note("launched", node=node.node_id, type=tags[TAG_RAY_USER_NODE_TYPE])
        with self.lock:
            if cloud_id in self._nodes:
                self._nodes[cloud_id]["node"] = node
                return
        self._note("terminated", node=node.node_id)
        _end(node)

    def terminate_node(self, node_id):
        """The autoscaler has no use for it any more."""
        self._let_go(node_id, "terminated")

    # -- what the cloud does

    @property
    def _num_held(self):
        """Without the head, and without those that are being taken."""
        return len(self._nodes) - 1 - len(self._taken)

    @property
    def _available(self):
        return self._offer()[0]

    def _offer(self):
        """(nodes that there are, seconds from a notice to a node's end or None)."""
        if self._now.exists():
            return json.loads(self._now.read_text())
        began = self._begun.stat().st_mtime if self._begun.exists() else time.time()
        return self._trace.at(time.time() - began), self._trace_notice_s

    def _replay(self):
        available = None
        while True:
            before, (available, notice_s) = available, self._offer()
            if available != before:
                self._note("available", nodes=available)
            with self.lock:
                ours = [cloud_id for cloud_id in self._nodes if cloud_id not in {self._head_node_id, *self._taken}]
                victims = self._dice.sample(ours, max(len(ours) - available, 0))
                # Whoever has not come up yet has nobody to give notice to.
                self._taken |= {victim: time.monotonic() + self._grace_s(victim, notice_s) for victim in victims}
                over = [cloud_id for cloud_id, end_s in self._taken.items() if end_s <= time.monotonic()]
            for cloud_id in set(victims) - set(over):
                self._give_notice(self._nodes[cloud_id]["node"].node_id, notice_s)
            for cloud_id in over:
                self._let_go(cloud_id, "killed")
            time.sleep(_TICK_S)

    def _grace_s(self, cloud_id, notice_s):
        return notice_s if notice_s and self._nodes[cloud_id]["node"] else 0.0

    def _give_notice(self, node_id, notice_s):
        self._note("notice", node=node_id)
        try:
            request_drain(GcsClient(address=self._gcs_address), node_id, notice_s, "the cloud takes it back")
        except Exception as error:  # noqa: BLE001  # it may have gone; its end comes anyway
            self._note("notice failed", node=node_id, reason=str(error))

    def _let_go(self, cloud_id, event):
        with self.lock:
            entry = self._nodes.pop(cloud_id, None)
            self._taken.pop(cloud_id, None)
        if entry is not None and entry["node"] is not None:
            self._note(event, node=entry["node"].node_id)
            _end(entry["node"])

    def _note(self, event, **facts):
        with self._events.open("a") as file:
            file.write(json.dumps({"at": time.time(), "event": event, **facts}) + "\n")


def _children():
    return {process.pid for process in _processes() if process.parent == os.getpid()}


def _end(node):
    raylet = node.all_processes["raylet"][0].process
    if raylet.poll() is None:
        kill_tree(raylet.pid)
    with contextlib.suppress(Exception):  # its other processes may have gone with it
        node.kill_all_processes(check_alive=False, allow_graceful=False)
