"""The driver's connection to its supervisor: start the process, send commands, end it.

Each command is one JSON line, and so is each answer.
"""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from planner.errors import RunError
from planner.local_cluster.environment import supervisor_environment
from planner.local_cluster.processes import kill_all

CLOSE_DEADLINE_S = 30.0
# How often the supervisor checks that its driver still runs, in addition to the end of the pipe.
HEARTBEAT_S = 1.0
STDERR_TAIL_LINES = 15
STDERR_TAIL_BYTES = 16384


class TooLate(RunError):
    """A command was not done in time, or a process of the cluster has ended. Another start may succeed."""


def open_link(health_checks: Mapping[str, str]) -> "SupervisorLink":
    """Start a supervisor with its own temporary directory.

    Raises:
        RunError: the directory or the process could not be created.
    """
    try:
        # A short path under /tmp, regardless of TMPDIR: Ray's socket paths must stay below about 100 characters.
        home = Path(tempfile.mkdtemp(prefix="pl-", dir="/tmp"))
    except OSError as error:
        raise RunError(f"the embedded cluster needs a directory under /tmp: {error}") from error
    try:
        return _launch(home, health_checks)
    except OSError as error:
        shutil.rmtree(home, ignore_errors=True)
        raise RunError(f"the embedded cluster's supervisor could not be started: {error}") from error


def _launch(home: Path, health_checks: Mapping[str, str]) -> "SupervisorLink":
    # The log stays open, so that it can be read after the directory is removed.
    with contextlib.ExitStack() as stack:
        stderr = stack.enter_context((home / "supervisor.log").open("w+b"))
        process = subprocess.Popen(
            [sys.executable, "-m", "planner.local_cluster.supervisor"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=supervisor_environment(home, health_checks),
            start_new_session=True,
        )
        stack.pop_all()
    return SupervisorLink(process, stderr, home)


class SupervisorLink:
    """One supervisor: its process with two pipes, its directory and its stderr."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: IO[bytes], home: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._commands, self._answers = process, process.stdin, process.stdout
        self._stderr, self._home = stderr, home
        self._lock = threading.Lock()
        self._received = b""
        self._num_asked = 0

    def ask(self, command: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """Send one command and wait for its answer.

        Raises:
            TooLate: there was no answer within `deadline_s`, or the supervisor or a process of Ray has ended.
            RunError: the supervisor reported another error.
        """
        deadline = time.monotonic() + deadline_s
        if not self._lock.acquire(timeout=deadline_s):
            raise TooLate(f"the embedded cluster: {command['op']}: not tried, it was busy for {deadline_s:g} s")
        try:
            answer = self._exchange(command, deadline)
        except (TimeoutError, ConnectionError) as error:
            raise TooLate(f"the embedded cluster: {command['op']}: {error}{self._stderr_tail()}") from error
        finally:
            self._lock.release()
        if "error" in answer:
            kind = TooLate if answer["is_late"] else RunError
            raise kind(f"the embedded cluster: {command['op']}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Let the supervisor end its cluster, and kill what is left after that.

        Raises:
            RunError: a process survived SIGKILL.
        """
        # The end of this pipe tells the supervisor to end.
        self._commands.close()
        self._await_exit(CLOSE_DEADLINE_S)
        # The supervisor is not reaped yet, so no other process can have its pid, which is also the session's id.
        survivors = kill_all(self._process.pid, CLOSE_DEADLINE_S)
        if survivors:
            raise RunError(f"processes of the embedded cluster survived SIGKILL: {survivors}")
        try:
            self._process.wait(CLOSE_DEADLINE_S)
        except subprocess.TimeoutExpired as error:
            raise RunError(
                f"the embedded cluster's supervisor (pid {self._process.pid}) still runs {CLOSE_DEADLINE_S:g} s after "
                "SIGKILL: it waits for a disk, and ends when the disk answers"
            ) from error
        self._answers.close()
        self._stderr.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _exchange(self, command: dict[str, Any], deadline: float) -> dict[str, Any]:
        self._num_asked += 1
        line = json.dumps({**command, "id": self._num_asked}) + "\n"
        os.write(self._commands.fileno(), line.encode())  # far below a pipe's 64 KiB, so it is written as a whole
        while True:  # skip answers to earlier commands that were abandoned (deadline, Ctrl-C)
            answer: dict[str, Any] = json.loads(self._read_line(deadline))
            if answer["id"] == self._num_asked:
                return answer

    def _read_line(self, deadline: float) -> bytes:
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("no answer in time")
            chunk = os.read(self._answers.fileno(), 65536)
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

    def _stderr_tail(self) -> str:
        """The last lines of the supervisor's stderr. It waits a moment for the traceback of one that is ending."""
        self._await_exit(HEARTBEAT_S)
        length = os.fstat(self._stderr.fileno()).st_size
        text = os.pread(self._stderr.fileno(), STDERR_TAIL_BYTES, max(0, length - STDERR_TAIL_BYTES))
        lines = text.decode(errors="replace").splitlines()[-STDERR_TAIL_LINES:]
        return "".join(f"\n  | {line}" for line in lines)
