"""A Ray cluster of several logical nodes on this machine. All of its ports are on 127.0.0.1 and need a token.

    the driver                            the supervisor, `python -m planner.local_cluster.supervisor`
    EmbeddedCluster  -- one JSON line -->  Supervisor -> ray.cluster_utils.Cluster -> gcs, raylets, workers
                     <-- one JSON line --

`Cluster.add_node` and Ray Train's `fit()` both need the main thread, so the cluster runs in its own process. That
process leads a session, so Ctrl-C in the terminal does not reach it. Everything it starts stays in that session: this
is how both sides know which processes to kill. It works on Linux only.

`torch.distributed` opens a store in rank 0 that listens on all interfaces. `loopback_torch_config`
(`planner.dispatch.ray_internal.loopback`) keeps it on loopback.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from planner.base.node_market import MARKET_LABEL, ON_DEMAND
from planner.errors import RunError
from planner.local_cluster.environment import QUICK_HEALTH_CHECKS
from planner.local_cluster.link import SupervisorLink, TooLate, open_link

# Two shared cores start a head in 2-7 s and a node in 1-3 s. At a load of 20 they are ten times slower. Ray's own
# limits in a start (30 s until a raylet is registered) cannot be changed, so a start that exceeds one is tried again.
# So is one that lost a process. Any other error would come again.
START_DEADLINE_S = 300.0
NODE_DEADLINE_S = 180.0
STARTS = 3


@dataclass(frozen=True, kw_only=True)
class NodeShape:
    """What one logical node offers to Ray's scheduler. Nothing is enforced, and GPUs need not exist.

    Raises:
        ValueError: an amount is negative or not whole, or the object store is below Ray's minimum.
    """

    cpus: float
    gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=lambda: {MARKET_LABEL: ON_DEMAND})
    """no cloud takes this machine back, unless a test says so"""
    object_store_bytes: int = 150 * 2**20

    def __post_init__(self) -> None:
        """Check the amounts."""
        amounts = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        wrong = {name: amount for name, amount in amounts.items() if amount < 0 or amount != int(amount)}
        if wrong:
            raise ValueError(f"a node's amounts must be whole and at least 0, got {wrong}")
        if self.object_store_bytes < 80 * 2**20:
            raise ValueError(f"object_store_bytes is {self.object_store_bytes:,}, Ray needs at least {80 * 2**20:,}")


ONE_CPU = NodeShape(cpus=1)


def require_platform() -> None:
    """Check that this machine can run a local cluster.

    Raises:
        RunError: it is not Linux.
    """
    if not sys.platform.startswith("linux"):
        raise RunError(f"the embedded cluster needs Linux, not {sys.platform}: give a cluster's address")


class EmbeddedCluster:
    """A context manager for a cluster of a head without CPUs and `num_nodes` nodes.

    The cluster ends when the context is left, and when the driver ends or is killed. One thread may be in `fit()`
    while another calls these methods.

    Raises:
        RunError: (from every method) the cluster did not start, did not answer in time, or has died. The message ends
            with the last lines of the supervisor's stderr.
    """

    def __init__(
        self,
        num_nodes: int = 4,
        shape: NodeShape = ONE_CPU,
        *,
        quick_health_checks: bool = True,
        say: Callable[[str], None] = lambda _line: None,
        progress: Callable[[int, int], None] = lambda _done, _of: None,
    ) -> None:
        self._say = say
        self._progress = progress
        self.num_nodes = num_nodes
        self.shape = shape
        self.quick_health_checks = quick_health_checks
        self._link: SupervisorLink | None = None
        self._address = ""

    def __enter__(self) -> Self:
        """Start the head and the nodes."""
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the cluster."""
        self.close()

    def start(self) -> None:
        """Start the head and the nodes. A start that was too slow or lost a process is tried again, three times in all.

        Raises:
            RunError: this is not Linux, the cluster already runs, or it could not be started.
        """
        require_platform()
        if self._link is not None:
            raise RunError(f"the embedded cluster already runs at {self._address}: close it first")
        for number in range(1, STARTS + 1):
            try:
                self._start_once()
            except TooLate as error:
                reason = _first_line(error)
                if number == STARTS:
                    text = f"the local Ray cluster did not start in {STARTS} attempts: {reason}. {how_busy()}"
                    raise RunError(text) from error
                self._say(f"the local Ray cluster did not start ({reason}): attempt {number + 1} of {STARTS}")
            except RunError as error:  # it would come again in the same way
                text = f"the local Ray cluster did not start: {_first_line(error)}. Correct this, and run again"
                raise RunError(text) from error
            else:
                return

    def _start_once(self) -> None:
        self._link = open_link(QUICK_HEALTH_CHECKS if self.quick_health_checks else {})
        try:
            self._address = self._ask({"op": "start"}, START_DEADLINE_S)["address"]
            for number in range(self.num_nodes):
                self._progress(1 + number, 1 + self.num_nodes)
                self.add_node()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """The address for `ray.init(address=...)`, "127.0.0.1:port". The driver needs `driver_environment`."""
        if self._link is None:
            raise RunError("the embedded cluster is not running: enter its context first")
        return self._address

    def add_node(self, shape: NodeShape | None = None) -> str:
        """Start one more node, by default like the others. Returns its id (hex) once it is registered."""
        found = shape or self.shape
        # asdict takes no read-only mapping
        plain = {**vars(found), "resources": dict(found.resources), "labels": dict(found.labels)}
        return str(self._ask({"op": "add", "shape": plain}, NODE_DEADLINE_S)["node_id"])

    def kill_node(self, node_id: str | None = None) -> str:
        """SIGKILL a node with all its workers, as a preemption without notice does. Returns its id.

        The default is the node added last. On return its raylet has ended, and its other processes end within
        moments. Ray notices 1 to 4 s later.
        """
        return self._end_node("kill", node_id)

    def remove_node(self, node_id: str | None = None) -> str:
        """End a node by SIGTERM. Returns its id. The default is the node added last."""
        return self._end_node("remove", node_id)

    def nodes(self) -> list[str]:
        """The ids of the nodes with a living raylet, oldest first, without the head."""
        return [str(node_id) for node_id in self._ask({"op": "nodes"}, NODE_DEADLINE_S)["node_ids"]]

    def close(self) -> None:
        """End all processes of the cluster and remove its temporary directory. A second call does nothing.

        Call `ray.shutdown()` first: a driver that is still connected waits 60 s for its lost cluster, then aborts.

        Raises:
            RunError: a process survived SIGKILL.
        """
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _end_node(self, how: str, node_id: str | None) -> str:
        return str(self._ask({"op": how, "node_id": node_id}, NODE_DEADLINE_S)["node_id"])

    def _ask(self, command: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        if self._link is None:
            raise RunError("the embedded cluster is not running: enter its context first")
        return self._link.ask(command, deadline_s)


def _first_line(error: RunError) -> str:
    return str(error).partition("\n")[0]


def how_busy() -> str:
    """A sentence with this machine's load, and what to do if Ray does not start in time."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > 2 * cores:
        return f"This machine is busy (load {load:.0f} on {cores} cores): run again when it is less busy"
    return f"This machine is not busy (load {load:.0f} on {cores} cores): check its memory and the free space in /tmp"
