"""Reports where a run stands when its driver cannot: Ray ends the driver from C++, or somebody kills it.

    the driver                                   `python -m planner.runner.driver_end`
    DriverWatch  -- stdin: JSON lines, then EOF -->  main: watches Ray's head and the driver, and prints to stderr
                 <-- stdout: one byte: end now --

Ray ends a driver at once if it loses its node's raylet, and after a minute if it loses the head's `gcs_server`. The
driver then runs no more Python code, so this other process prints what is committed and which command resumes.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from planner.errors import StoreError
from planner.store.newest import newest_commit
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

_LOOK_S = 0.5
# One failed look does not mean that the head has ended: a busy one may be slow to accept a connection.
_LOOKS_UNTIL_GONE = 4
_FAREWELL = b"bye\n"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What the message about a driver's end contains."""

    url: str
    """the run's folder"""
    total_steps: int
    """0 if not known"""
    resume_command: str
    driver: int
    """its process id"""


@dataclass(frozen=True, kw_only=True)
class RayListeners:
    """Where two Ray processes listen. A driver ends without either of them."""

    gcs: str
    """host:port"""
    raylet: str
    """the Unix socket of the driver's own node"""
    is_embedded: bool
    """whether this driver started the head, so that no other process restarts it"""


class DriverWatch:
    """A context manager around a driver's work. If the driver leaves it, the other process ends and prints nothing."""

    def __init__(self, subject: RunSummary) -> None:
        self._subject = subject

    def __enter__(self) -> Self:
        package = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "planner.runner.driver_end"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))},
            start_new_session=True,  # Ctrl-C and a closed terminal must reach only the driver
        )
        self._tell(asdict(self._subject))
        self._listening = threading.Thread(target=self._end_when_told, name="planner-driver-end", daemon=True)
        self._listening.start()
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # somebody has killed it
            self._process.stdin.write(_FAREWELL)
            self._process.stdin.close()
        self._process.wait()
        self._listening.join()
        self._process.stdout.close()

    @contextlib.contextmanager
    def watching(self, head: RayListeners) -> Iterator[None]:
        """Watch the head while the driver is connected. After that, an embedded head may end."""
        self._tell(asdict(head))
        try:
            yield
        finally:
            self._tell({})

    def _tell(self, facts: dict[str, object]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(facts).encode() + b"\n")
            self._process.stdin.flush()

    def _end_when_told(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.read(1):
            os._exit(1)  # Ray would wait for the head for a minute, then end this process in the same way


@dataclass(frozen=True, kw_only=True)
class EndedProcess:
    """A Ray process that has ended."""

    description: str
    is_final: bool
    """whether it cannot be restarted under this driver"""


def ended_process(head: RayListeners, is_there: Callable[[str], bool]) -> EndedProcess | None:
    """The process that the driver has lost, or None. `is_there` says whether a process listens at an address."""
    if not is_there(head.raylet):
        return EndedProcess(description="the raylet of this driver's node has died", is_final=True)
    if not is_there(head.gcs):
        return EndedProcess(description=f"the head's gcs_server ({head.gcs}) has died", is_final=head.is_embedded)
    return None


class ListenerConnections:
    """Open connections to listeners. They are kept open, because Ray logs every new connection."""

    def __init__(self) -> None:
        self._held: dict[str, socket.socket] = {}

    @property
    def held(self) -> tuple[socket.socket, ...]:
        """The open connections. The end of one can be read from it."""
        return tuple(self._held.values())

    def is_there(self, address: str) -> bool:
        """Whether a process listens at `host:port`, or at the path of a Unix socket."""
        if address in self._held and not _has_ended(self._held[address]):
            return True
        if address in self._held:
            self._held.pop(address).close()
        try:
            self._held[address] = _connection(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # too busy to accept, or the network is away: the process may still run
            return True
        return True


def _connection(address: str) -> socket.socket:
    if not address.startswith("/"):
        host, _, port = address.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), timeout=_LOOK_S)
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(_LOOK_S)
    client.connect(address)
    return client


def _has_ended(connection: socket.socket) -> bool:
    """Whether the other end has closed it: the process died, or a gRPC server closed an idle connection."""
    try:
        return bool(select.select([connection], [], [], 0)[0]) and not connection.recv(65536)
    except OSError:
        return True


def driver_end_message(subject: RunSummary, why: str) -> str:
    """Why a run ended, what is committed, and which command resumes it."""
    try:
        committed = newest_commit_text(subject.url, subject.total_steps)
    except StoreError as error:
        committed = f"what is committed cannot be read now ({error})"
    return f"{why}: {committed}. Resume with: {subject.resume_command}"


def newest_commit_text(url: str, total_steps: int) -> str:
    """Read the run at `url` and return a text such as `step 8 of 60 is committed in runs/demo`.

    Args:
        url: the run's folder.
        total_steps: of the job, or 0 if the caller does not know it.

    Raises:
        StoreError: the folder cannot be read.
    """
    return commit_text(newest_commit(RunFolder(Storage(url))).manifest, url, total_steps)


def commit_text(newest: Manifest | None, url: str, total_steps: int) -> str:
    """Return a text such as `step 8 of 60 is committed in runs/demo`. `newest` is None if the run has no commit."""
    if newest is None:
        return f"nothing was committed yet in {url}"
    return f"step {newest.step} of {total_steps or newest.total_steps} is committed in {url}"


class _DriverMessages:
    """The driver's messages: its `RunSummary`, then `RayListeners` or nothing at each change, then `_FAREWELL`."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.has_ended = False
        self._received = b""

    def has_left(self) -> bool:
        """Whether it has ended normally, or before it said what it runs."""
        return _FAREWELL.strip() in self.lines or (self.has_ended and not self.lines)

    @property
    def head(self) -> RayListeners | None:
        """The head that the driver is connected to. None while it is not connected."""
        facts = json.loads(self.lines[-1]) if len(self.lines) > 1 else {}
        return RayListeners(**facts) if facts else None

    def wait(self, seconds: float, others: Sequence[socket.socket] = ()) -> bool:
        """Wait until the driver sends something or ends, or until another connection can be read, at most `seconds`.

        Returns:
            whether another connection can be read.
        """
        sources: list[int | socket.socket] = [0, *others]
        ready = select.select(sources, [], [], seconds)[0]
        if 0 in ready:
            self._receive()
        elif self.lines and not ready:  # a process that the driver forked may keep the pipe open
            self.has_ended = os.getppid() != json.loads(self.lines[0])["driver"]
        return any(source in ready for source in others)

    def _receive(self) -> None:
        """Read all that the driver has sent, up to its end."""
        while not self.has_ended and select.select([0], [], [], 0)[0]:
            chunk = os.read(0, 65536)
            self.has_ended = not chunk
            *lines, self._received = (self._received + chunk).split(b"\n")
            self.lines += lines


def _ending(driver: _DriverMessages, say: Callable[[str], None]) -> str:
    """Wait until the driver or its head ends, and return what happened. Empty if the driver ended normally."""
    num_missed, is_woken, lines = 0, False, ListenerConnections()
    while True:
        # With a look at once when a connection ends, it is known which of the driver and the raylet ended first. Not
        # twice in a row: something between may accept connections and close them.
        is_woken = driver.wait(_LOOK_S, lines.held if driver.head and not (num_missed or is_woken) else ())
        if driver.has_left():
            return ""
        lost = ended_process(driver.head, lines.is_there) if driver.head else None
        num_missed = num_missed + 1 if lost else 0
        if lost:
            driver.wait(0.0)  # a driver that has not ended by now has outlived the process that it lost
        if driver.has_left():
            return ""
        if driver.has_ended:
            return _of_driver(driver.head, lost, was_lost_before=num_missed > 1)
        if lost and num_missed == _LOOKS_UNTIL_GONE:
            if lost.is_final:
                return lost.description
            say(f"{lost.description}. Ray waits a minute for another one and then ends this driver")


def _of_driver(head: RayListeners | None, lost: EndedProcess | None, *, was_lost_before: bool) -> str:
    """What is known of a driver that has ended without a word. A local cluster ends with its driver."""
    if lost is None or head is None:
        return "this driver was ended from outside (killed, or out of memory)"
    if was_lost_before or not head.is_embedded:
        return lost.description
    return "this driver and its local Ray cluster have ended (killed, or out of memory)"


def main() -> None:
    """Wait until the driver or its head ends, and print what that means for the run."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # this process ends when the driver ends
    driver = _DriverMessages()
    if why := _ending(driver, _say):
        _say(driver_end_message(RunSummary(**json.loads(driver.lines[0])), why))
        with contextlib.suppress(OSError):  # the driver has ended by itself
            os.write(1, b"!")


def _say(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h\r\n")  # show the cursor, which the live panel hides
    sys.stderr.write(f"planner: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
