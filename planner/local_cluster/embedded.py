"""A Ray cluster of several logical nodes on this machine, every port of it on 127.0.0.1 and behind a token.

    the driver                            the supervisor, `python -m planner.local_cluster.supervisor`
    EmbeddedCluster  -- one JSON line -->  Supervisor -> ray.cluster_utils.Cluster -> gcs, raylets, workers
                     <-- one JSON line --

`Cluster.add_node` and Ray Train's `fit()` each want the main thread, so the cluster lives in a process of its
own. That process leads a session (Ctrl-C in the terminal does not reach it) and everything it starts stays in
that session: this is how the two sides know what is theirs to kill. It works on Linux only.

One listener is not this file's: the store that `torch.distributed` opens in rank 0 takes all interfaces, unless the
trainer is given `private.loopback_torch_config`.
"""

import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from planner.errors import RunError
from planner.local_cluster.processes import kill_all

LOOPBACK = "127.0.0.1"

# Two shared cores start a head in 2-7 s and a node in 1-3 s; at a load of 20, ten times as slowly. Ray's own limits
# inside a start (30 s until a raylet is registered) cannot be set: a start that hits one is tried again.
START_DEADLINE_S = 300.0
NODE_DEADLINE_S = 180.0
STARTS = 3
CLOSE_DEADLINE_S = 30.0
# How often the supervisor looks whether its driver is still there, should the pipe not have told it.
HEARTBEAT_S = 1.0
STDERR_TAIL_LINES = 15
STDERR_TAIL_BYTES = 16384

# One for a process: Ray reads it once, and several clusters may follow each other.
_TOKEN = secrets.token_hex(32)
# A dead node is noticed after about period * threshold = 3 s; Ray's own defaults take 20 s and more.
_HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


# How long Ray waits for a gcs_server to start. Its default of 20 to 30 s is short on a busy machine.
PATIENCE = {"RAY_gcs_server_port_wait_time_s": "120"}


def driver_environment() -> dict[str, str]:
    """The variables a driver must have **before it imports ray** to reach the embedded clusters that it starts."""
    return {**loopback_environment(), **token_environment()}


def loopback_environment() -> dict[str, str]:
    """What a client of any cluster on loopback must have.

    Without the first, `ray.init("127.0.0.1:port")` rewrites the address to the machine's outer one, where
    nobody listens. With it, that process can reach clusters on this machine only.
    """
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def token_environment() -> dict[str, str]:
    """The token of this process's clusters: for the machine's other users, loopback is no wall.

    Ray looks here before it looks for a file, so another cluster's token is no obstacle.
    """
    # KubeRay may tell Ray to ask Kubernetes about tokens, and Kubernetes does not know ours.
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN, "RAY_ENABLE_K8S_TOKEN_AUTH": "false"}


@dataclass(frozen=True, kw_only=True)
class NodeShape:
    """What one logical node offers to Ray's scheduler; nothing is enforced, and GPUs need not exist.

    Raises:
        ValueError: an amount is negative or no whole number, or the object store is smaller than Ray takes.
    """

    cpus: float
    gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    object_store_bytes: int = 150 * 2**20

    def __post_init__(self) -> None:
        """Check the amounts."""
        amounts = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        wrong = {name: amount for name, amount in amounts.items() if amount < 0 or amount != int(amount)}
        if wrong:
            raise ValueError(f"a node offers whole amounts, 0 or more; got {wrong}")
        if self.object_store_bytes < 80 * 2**20:
            raise ValueError(f"object_store_bytes is {self.object_store_bytes:,}; Ray wants {80 * 2**20:,} or more")


ONE_CPU = NodeShape(cpus=1)


class EmbeddedCluster:
    """A context manager: a head without CPUs, `num_nodes` nodes beside it, and nothing left behind.

    The cluster goes when the context is left, when the driver ends, and when the driver is killed. One thread
    may be in `fit()` while another calls these methods.

    Raises:
        RunError: (from every method) the cluster did not start, did not answer in time, or has died. The
            message ends with the last lines that the supervisor wrote.
    """

    def __init__(
        self,
        num_nodes: int = 4,
        shape: NodeShape = ONE_CPU,
        *,
        quick_health_checks: bool = True,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._say = say
        self.num_nodes = num_nodes
        self.shape = shape
        self.quick_health_checks = quick_health_checks
        self._link: _Link | None = None
        self._address = ""

    def __enter__(self) -> Self:
        """Start the head and the nodes."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the cluster, whatever happened."""
        self.close()

    def start(self) -> None:
        """Start the head and the nodes. A start that fails is tried again, and `say` says so.

        Raises:
            RunError: this is not Linux, the cluster runs already, or it could not be started.
        """
        if not sys.platform.startswith("linux"):
            raise RunError(f"the embedded cluster needs Linux, not {sys.platform}: give a cluster's address")
        if self._link is not None:
            raise RunError(f"the embedded cluster already runs at {self._address}: close it first")
        for number in range(1, STARTS + 1):
            try:
                self._start_once()
            except RunError as error:
                why = str(error).partition("\n")[0]
                if number == STARTS:
                    text = f"the local Ray cluster did not start, tried {STARTS} times: {why}; {how_busy()}"
                    raise RunError(text) from error
                self._say(f"the local Ray cluster did not start ({why}): trying again, {number + 1} of {STARTS}")
            else:
                return

    def _start_once(self) -> None:
        self._link = _open_link(_HEALTH_CHECKS if self.quick_health_checks else {})
        try:
            self._address = self._ask({"op": "start"}, START_DEADLINE_S)["address"]
            for _ in range(self.num_nodes):
                self.add_node()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Where `ray.init(address=...)` finds the cluster, "127.0.0.1:port"; see `driver_environment`."""
        if self._link is None:
            raise RunError("the embedded cluster is not running: enter its context first")
        return self._address

    def add_node(self) -> str:
        """Start one more node and return its id (hex) once it is registered."""
        shape = {**vars(self.shape), "resources": dict(self.shape.resources)}  # asdict takes no read-only mapping
        return str(self._ask({"op": "add", "shape": shape}, NODE_DEADLINE_S)["node_id"])

    def kill_node(self, node_id: str | None = None) -> str:
        """SIGKILL a node with all its workers, as a preemption without notice does, and return its id.

        Without an id it is the node added last. The processes are gone on return; Ray notices 1 to 4 s later.
        """
        return self._end_node("kill", node_id)

    def remove_node(self, node_id: str | None = None) -> str:
        """End a node in an orderly way (SIGTERM) and return its id; without an id the node added last."""
        return self._end_node("remove", node_id)

    def nodes(self) -> list[str]:
        """The ids of the nodes whose raylet lives, oldest first, without the head."""
        return [str(node_id) for node_id in self._ask({"op": "nodes"}, NODE_DEADLINE_S)["node_ids"]]

    def close(self) -> None:
        """End everything that was started and remove the temporary directory. Closing twice is once.

        Call `ray.shutdown()` first: a driver still connected waits 60 s for its lost cluster, then aborts.

        Raises:
            RunError: a process outlived its SIGKILL.
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


def how_busy() -> str:
    """What to do about a Ray that does not start in time on this machine, with its load."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > 2 * cores:
        return f"this machine is busy (a load of {load:.0f} on {cores} cores): run again when it is less so"
    return (
        f"this machine is not busy (a load of {load:.0f} on {cores} cores): look at its memory and at the room in /tmp"
    )


def _open_link(health_checks: Mapping[str, str]) -> "_Link":
    """Start a supervisor in a directory of its own.

    Raises:
        RunError: there is no room for the directory or the process.
    """
    try:
        # Short, and under /tmp whatever TMPDIR says: Ray's socket paths must stay below about 100 characters.
        home = Path(tempfile.mkdtemp(prefix="pl-", dir="/tmp"))
    except OSError as error:
        raise RunError(f"the embedded cluster needs a directory under /tmp: {error}") from error
    try:
        return _launch(home, health_checks)
    except OSError as error:
        shutil.rmtree(home, ignore_errors=True)
        raise RunError(f"the embedded cluster's supervisor could not be started: {error}") from error


def _launch(home: Path, health_checks: Mapping[str, str]) -> "_Link":
    stderr = (home / "supervisor.log").open("w+b")  # held open: it can be read when the directory is gone
    commands_out, commands_in = os.pipe()
    answers_out, answers_in = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "planner.local_cluster.supervisor"],
            stdin=commands_out,
            stdout=answers_in,
            stderr=stderr,
            env=_supervisor_environment(home, health_checks),
            start_new_session=True,
        )
    except OSError:
        os.close(commands_in)
        os.close(answers_out)
        stderr.close()
        raise
    finally:
        os.close(commands_out)
        os.close(answers_in)
    return _Link(process, commands_in, answers_out, stderr, home)


def _supervisor_environment(home: Path, health_checks: Mapping[str, str]) -> dict[str, str]:
    """What gcs, raylets and workers inherit."""
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    package_root = str(Path(__file__).resolve().parents[2])
    search_path = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **inherited,
        **driver_environment(),
        **PATIENCE,
        **health_checks,
        "RAY_TMPDIR": str(home),
        "GLOO_SOCKET_IFNAME": "lo",  # else gloo binds whatever address the host's name resolves to
        "PYTHONPATH": os.pathsep.join(search_path),
    }


class _Link:
    """One supervisor: its process, its two pipes, its directory, what it wrote to stderr."""

    def __init__(
        self, process: subprocess.Popen[bytes], commands: int, answers: int, stderr: IO[bytes], home: Path
    ) -> None:
        self._process = process
        self._commands = commands
        self._answers = answers
        self._stderr = stderr
        self._home = home
        self._lock = threading.Lock()
        self._received = b""
        self._num_asked = 0

    def ask(self, command: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """Send one command and wait for its answer.

        Raises:
            RunError: no answer within `deadline_s`, the supervisor is gone, or it says why it cannot.
        """
        deadline = time.monotonic() + deadline_s
        if not self._lock.acquire(timeout=deadline_s):
            raise RunError(f"the embedded cluster: {command['op']}: not tried, busy for {deadline_s:g} s")
        try:
            answer = self._exchange(command, deadline)
        except (TimeoutError, ConnectionError) as error:
            raise RunError(f"the embedded cluster: {command['op']}: {error}{self._last_words()}") from error
        finally:
            self._lock.release()
        if "error" in answer:
            raise RunError(f"the embedded cluster: {command['op']}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Let the supervisor tear its cluster down, or do it for one that cannot.

        Raises:
            RunError: a process outlived its SIGKILL.
        """
        os.close(self._commands)
        self._await_exit(CLOSE_DEADLINE_S)
        # The supervisor is not reaped yet, so nobody else can have its number, which is the session's too.
        survivors = kill_all(self._process.pid, CLOSE_DEADLINE_S)
        if survivors:
            raise RunError(f"the embedded cluster left processes that SIGKILL does not end: {survivors}")
        try:
            self._process.wait(CLOSE_DEADLINE_S)
        except subprocess.TimeoutExpired as error:
            raise RunError(
                f"the embedded cluster's supervisor (pid {self._process.pid}) outlived its SIGKILL for "
                f"{CLOSE_DEADLINE_S:g} s: it waits for a disk; it ends when that answers"
            ) from error
        os.close(self._answers)
        self._stderr.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _exchange(self, command: dict[str, Any], deadline: float) -> dict[str, Any]:
        self._num_asked += 1
        line = json.dumps({**command, "id": self._num_asked}) + "\n"
        os.write(self._commands, line.encode())  # far below a pipe's 64 KiB: it is never cut
        while True:  # an answer to an earlier command that was given up (deadline, Ctrl-C) is passed over
            answer: dict[str, Any] = json.loads(self._read_line(deadline))
            if answer["id"] == self._num_asked:
                return answer

    def _read_line(self, deadline: float) -> bytes:
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("no answer in time")
            chunk = os.read(self._answers, 65536)
            if not chunk:
                raise ConnectionError("the supervisor has ended")
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _await_exit(self, deadline_s: float) -> None:
        """Wait until the supervisor ends, without reaping it."""
        deadline = time.monotonic() + deadline_s
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, self._process.pid, options) is None and time.monotonic() < deadline:
            time.sleep(0.05)

    def _last_words(self) -> str:
        """What the supervisor wrote last; if it is ending, its traceback comes with its end."""
        self._await_exit(HEARTBEAT_S)
        length = os.fstat(self._stderr.fileno()).st_size
        text = os.pread(self._stderr.fileno(), STDERR_TAIL_BYTES, max(0, length - STDERR_TAIL_BYTES))
        lines = text.decode(errors="replace").splitlines()[-STDERR_TAIL_LINES:]
        return "".join(f"\n  | {line}" for line in lines)
