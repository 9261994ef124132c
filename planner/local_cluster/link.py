"""The driver's end of the line to its supervisor: start the process, ask it, tear it down.

One JSON line goes out for a command, and one comes back for its answer.
"""

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
# How often the supervisor looks whether its driver is still there, should the pipe not have told it.
HEARTBEAT_S = 1.0
STDERR_TAIL_LINES = 15
STDERR_TAIL_BYTES = 16384


def open_link(health_checks: Mapping[str, str]) -> "SupervisorLink":
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


def _launch(home: Path, health_checks: Mapping[str, str]) -> "SupervisorLink":
    stderr = (home / "supervisor.log").open("w+b")  # held open: it can be read when the directory is gone
    commands_out, commands_in = os.pipe()
    answers_out, answers_in = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "planner.local_cluster.supervisor"],
            stdin=commands_out,
            stdout=answers_in,
            stderr=stderr,
            env=supervisor_environment(home, health_checks),
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
    return SupervisorLink(process, commands_in, answers_out, stderr, home)


class SupervisorLink:
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
