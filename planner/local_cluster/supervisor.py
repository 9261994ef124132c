"""`python -m planner.local_cluster.supervisor`: the process that owns an embedded cluster and answers its driver.

It reads one JSON command per line on stdin and writes one JSON answer per line on stdout (see `link`).
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.local_cluster.embedded import ONE_CPU, NodeShape
from planner.local_cluster.environment import LOOPBACK
from planner.local_cluster.link import CLOSE_DEADLINE_S, HEARTBEAT_S
from planner.local_cluster.processes import children, ended_children, kill_all, kill_tree, reap
from planner.local_cluster.start_errors import is_late


class Supervisor:
    """Owns the Ray cluster and answers commands, in the main thread of its process."""

    def __init__(self) -> None:
        self._cluster: Any = None
        self._nodes: dict[str, Any] = {}  # node id -> ray._private.node.Node, oldest first

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run one command. If Ray fails, kill half-started processes and answer with Ray's error as one line.

        `is_late` in the answer says whether Ray waited too long or lost a process, so that another start may succeed.
        """
        before = children(os.getpid())
        try:
            return self._do(command)
        except Exception as error:  # noqa: BLE001  # Ray raises any kind of exception
            traceback.print_exc()
            late = is_late(error) or bool(ended_children(os.getpid()) - before)
            for pid in children(os.getpid()) - before:  # processes of a half-started node
                kill_tree(pid)
            line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
            return {"error": f"Ray says {type(error).__name__}: {line.rstrip('.')}", "is_late": late}

    def _do(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["op"]:
            case "start":
                return {"address": self._start()}
            case "add":
                return {"node_id": self._add(NodeShape(**command["shape"]))}
            case "nodes":
                return {"node_ids": [node_id for node_id, node in self._nodes.items() if _is_alive(node)]}
            case "kill" | "remove" as how:
                return self._end(how, command["node_id"])
            case unknown:
                return {"error": f"no such command: {unknown}", "is_late": False}

    def _start(self) -> str:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,  # Ray Train reserves nothing on such a node
                "include_dashboard": False,
                "object_store_memory": ONE_CPU.object_store_bytes,
                **_loopback_arguments(),
            },
        )
        _handle_signals()
        return str(self._cluster.address)

    def _add(self, shape: NodeShape) -> str:
        node = self._cluster.add_node(
            num_cpus=shape.cpus,
            num_gpus=shape.gpus,
            resources=dict(shape.resources),
            labels=dict(shape.labels),
            object_store_memory=shape.object_store_bytes,
            **_loopback_arguments(),
        )
        _handle_signals()
        self._nodes[node.node_id] = node
        return str(node.node_id)

    def _end(self, how: str, wanted: str | None) -> dict[str, Any]:
        # A node with notice ends by itself when it is idle.
        alive = [node_id for node_id, node in self._nodes.items() if _is_alive(node)]
        node_id = wanted if wanted is not None else next(reversed(alive), None)
        if node_id not in self._nodes:
            return {"error": f"there is no node {node_id}. The nodes are {list(self._nodes)}", "is_late": False}
        node = self._nodes.pop(node_id)
        if how == "kill" and _is_alive(node):  # another process may have the pid of a dead one
            kill_tree(_raylet(node).pid)
        self._cluster.remove_node(node, allow_graceful=how == "remove")
        return {"node_id": node_id}


def _loopback_arguments() -> dict[str, Any]:
    # The agent's default port is 52365 on every head, so two clusters could not run at the same time.
    return {"node_ip_address": LOOPBACK, "dashboard_agent_listen_port": None}


def _raylet(node: Any) -> "subprocess.Popen[bytes]":
    process: subprocess.Popen[bytes] = node.all_processes["raylet"][0].process
    return process


def _is_alive(node: Any) -> bool:
    return _raylet(node).poll() is None


def _handle_signals() -> None:
    """Replace the handlers that each of Ray's nodes installs. SIGTERM exits, and SIGINT is left to the driver.

    SIGINT gets an empty handler and not SIG_IGN, which workers would inherit, and which breaks `ray.cancel`.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, lambda *_: None)


def _adopt_orphans() -> None:
    """Become the parent of orphans below this process, so that a dead raylet's workers are still found."""
    import ctypes

    pr_set_child_subreaper = 36  # linux/prctl.h
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def _commands(driver: int) -> Iterator[dict[str, Any]]:
    """Yield the commands until the driver closes the pipe or dies.

    A child that the driver forked may keep the pipe open, so this also checks that the parent is still the driver.
    """
    received = b""
    while os.getppid() == driver:
        ready, _, _ = select.select([0], [], [], HEARTBEAT_S)
        if ready:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, received = (received + chunk).split(b"\n")
            yield from map(json.loads, lines)
        reap()


def supervise() -> None:
    """Serve the driver until it ends, then end all processes and remove the directory."""
    driver = os.getppid()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep Ray's output out of the answers
    home = Path(os.environ["RAY_TMPDIR"])
    _handle_signals()
    _adopt_orphans()
    supervisor = Supervisor()
    try:
        for command in _commands(driver):
            answer = {**supervisor.answer(command), "id": command["id"]}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        kill_all(os.getpid(), CLOSE_DEADLINE_S)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    supervise()
