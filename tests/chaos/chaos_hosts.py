"""A Ray cluster whose nodes are hosts of their own, each in a network namespace where this machine allows it.

A namespace lives as long as the process that holds it: nothing is left behind, and nothing of it is seen outside.
Without namespaces all nodes share 127.0.0.1, and there are no partitions.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.dispatch.ray_internal.node_drainer import NodeDrainer
from planner.errors import RunError
from planner.local_cluster.environment import QUICK_HEALTH_CHECKS
from planner.local_cluster.processes import kill_all, members

_DEADLINE_S = 90.0
_OBJECT_STORE_BYTES = 100 * 2**20


@dataclass(frozen=True, kw_only=True)
class Host:
    """A node and what it runs in."""

    number: int
    node_id: str
    address: str
    leader: subprocess.Popen
    """of the session that Ray's processes are in"""
    holder: subprocess.Popen | None
    """keeps the namespace; none where there are none"""

    def pids(self) -> set[int]:
        """Whatever lives on it."""
        if self.holder is None:
            return {self.leader.pid, *members(self.leader.pid)} if self.leader.poll() is None else set()
        return _in_network(_network(self.holder.pid)) - {self.holder.pid}


class Hosts:
    """The head, on which the driver and the controller run, and nodes of one CPU that come and go."""

    def __init__(self, scratch: Path, *, isolated: bool) -> None:
        self._isolated = isolated
        self._scratch = scratch
        self._count = 0
        self.nodes: dict[str, Host] = {}
        token = scratch / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            **QUICK_HEALTH_CHECKS,
            "RAY_TMPDIR": str(scratch / "ray"),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        os.environ.update({name: value for name, value in self.environment.items() if name.startswith("RAY_")})
        self._ip = "10.77.0.1" if isolated else "127.0.0.1"
        if isolated:
            for command in (
                "link set lo up",
                "link add bridge type bridge",
                "addr add 10.77.0.1/16 dev bridge",
                "link set bridge up",
            ):
                _ip(*command.split())
            self.environment["GLOO_SOCKET_IFNAME"] = "bridge"
        self.address = f"{self._ip}:{_free_port()}"
        self._head = self._start(
            [],
            ["--head", f"--port={self.address.rpartition(':')[2]}", "--num-cpus=0", "--include-dashboard=false"],
            self._ip,
            secrets.token_hex(28),
            self.environment,
        )
        self._client = self._await_node("")

    # -- nodes

    def add(self) -> str:
        """Start a node; its id once it is registered, or nothing: a machine that never comes up is ended.

        A cloud's, too, may never come up, and that is no fault of the run's.
        """
        self._count += 1
        number, node_id = self._count, secrets.token_hex(28)
        holder = None
        address, prefix, environment = self._ip, [], dict(self.environment)
        if self._isolated:
            holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], start_new_session=True)
            _await(lambda: _network(holder.pid) != _network(os.getpid()), "a network namespace")
            # Addresses are not used again while a dead node's may be remembered.
            address = f"10.77.{number // 250}.{number % 250 + 2}"
            prefix = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
            veth = f"host{number}"
            _ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
            _ip("link", "set", veth, "master", "bridge")
            _ip("link", "set", veth, "up")
            for command in ("link set lo up", f"addr add {address}/16 dev eth0", "link set eth0 up"):
                subprocess.run([*prefix, "ip", *command.split()], check=True)
            environment["GLOO_SOCKET_IFNAME"] = "eth0"
        leader = self._start(prefix, [f"--address={self.address}", "--num-cpus=1"], address, node_id, environment)
        self.nodes[node_id] = Host(number=number, node_id=node_id, address=address, leader=leader, holder=holder)
        try:
            self._await_node(node_id)
        except RunError:
            self.kill(node_id)
            return ""
        return node_id

    def kill(self, node_id: str) -> None:
        """SIGKILL all of it, as a cloud does that takes a machine."""
        host = self.nodes.pop(node_id)
        if host.holder is None:
            kill_all(host.leader.pid, _DEADLINE_S)
        else:
            _kill_until_empty(host.pids)
            host.holder.kill()
            host.holder.wait()
        host.leader.wait()

    def drain(self, node_id: str, within_s: float) -> None:
        """Give Ray a notice for it, as planner's agent does on its machine: again while a busy head does not answer.

        A notice that nobody heard in time is followed by a death without one.
        """
        drainer, deadline_s = NodeDrainer(self._client, self.address, node_id), time.monotonic() + within_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            with contextlib.suppress(RunError):
                drainer.drain(left_s, "chaos")
                return

    def cut(self, node_id: str) -> None:
        """No packet to it or from it any more."""
        _ip("link", "set", f"host{self.nodes[node_id].number}", "down")

    def mend(self, node_id: str) -> None:
        """Packets again."""
        _ip("link", "set", f"host{self.nodes[node_id].number}", "up")

    def forget_the_dead(self) -> None:
        """A node whose raylet has ended is none, though its processes may linger: Ray ends one that it has given up."""
        for node_id, host in list(self.nodes.items()):
            if host.leader.poll() is not None:
                self.kill(node_id)

    # -- processes

    def pids(self, text: str, node_id: str = "") -> list[int]:
        """The processes with this text in their command line, on one node or anywhere."""
        hosts = [self.nodes[node_id]] if node_id else list(self.nodes.values())
        found = set().union(*(host.pids() for host in hosts)) if hosts else set()
        if not node_id:
            found |= {self._head.pid, *members(self._head.pid)}
        return sorted(pid for pid in found if text in _command_line(pid))

    def node_of(self, pid: int) -> str:
        """The node that a process lives on. Empty if that is none."""
        return next((node_id for node_id, host in self.nodes.items() if pid in host.pids()), "")

    def close(self) -> None:
        """End everything."""
        for node_id in list(self.nodes):
            self.kill(node_id)
        kill_all(self._head.pid, _DEADLINE_S)
        self._head.wait()

    def _start(
        self, prefix: list[str], options: Sequence[str], address: str, node_id: str, environment: dict[str, str]
    ) -> subprocess.Popen:
        command = [
            *prefix,
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            f"--node-ip-address={address}",
        ]
        options = [*options, f"--object-store-memory={_OBJECT_STORE_BYTES}", "--dashboard-agent-listen-port=0"]
        with (self._scratch / f"host{self._count}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": node_id},
                start_new_session=True,
            )

    def _await_node(self, node_id: str):
        """Until the cluster answers, and knows the node."""
        from ray._raylet import GcsClient

        def ask():
            try:
                client = GcsClient(address=self.address)
                known = client.get_all_node_info(timeout=5.0)
            except Exception:  # noqa: BLE001  # it starts
                return None
            return client if any(key.hex() == node_id or not node_id for key in known) else None

        return _await(ask, f"node {node_id[:8]}" if node_id else "the head")


def isolation() -> list[str]:
    """The command that puts a process into namespaces of its own; empty where none are allowed."""
    for command in (["unshare", "--net", "--mount"], ["unshare", "--user", "--map-root-user", "--net", "--mount"]):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run([*command, "ip", "link", "set", "lo", "up"], check=True, capture_output=True)
            return command
    return []


def _await(found, what: str):
    deadline_s = time.monotonic() + _DEADLINE_S
    while not (value := found()):
        if time.monotonic() > deadline_s:
            raise RunError(f"{what} did not come within {_DEADLINE_S:.0f} s")
        time.sleep(0.1)
    return value


def _kill_until_empty(pids) -> None:
    deadline_s = time.monotonic() + _DEADLINE_S
    while living := pids():
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise RunError(f"processes outlive SIGKILL: {living}")
        time.sleep(0.02)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _network(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def _in_network(inode: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if _network(int(entry.name)) == inode:
                    found.add(int(entry.name))
    return found


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
