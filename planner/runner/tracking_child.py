"""Starts the child process that sends a run's rows to its trackers, and ends it. Nothing here raises into training."""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from planner.base.wait_reports import reminded
from planner.job import Job
from planner.runner.display import Say
from planner.tracking.child import END_LIMIT_S
from planner.tracking.tracker import require_usable

# The child ends by itself within its own limit. One that does not is left behind.
_PATIENCE_S = END_LIMIT_S + 5.0


def check_trackers(job: Job, url: str) -> None:
    """Check that a job's trackers have their libraries and settings. Whether a server answers is not checked.

    Raises:
        TrackerUnavailable: something is missing. The message says what to do.
    """
    for section in job.tracking:
        require_usable(section, url)


class TrackingChild:
    """A context manager around training. Without trackers in the job it does nothing."""

    def __init__(self, job: Job, url: str, say: Say) -> None:
        self._job, self._url, self._say = job, url, say
        self._process: subprocess.Popen[bytes] | None = None
        self._listening: threading.Thread | None = None
        self._is_ending = False

    def __enter__(self) -> Self:
        if self._job.tracking:
            try:
                self._process = start_child(self._job, self._url, {})
            except OSError as error:
                self._say(f"tracking: cannot start the process that sends rows ({error.strerror}). {self._advice}")
                return self
            self._listening = threading.Thread(
                target=self._listen, args=(self._process,), name="planner-tracking", daemon=True
            )
            self._listening.start()
        return self

    def _listen(self, process: "subprocess.Popen[bytes]") -> None:
        for line in lines_of(process):
            self._say(f"tracking: {line}")
        code = process.wait()
        if not self._is_ending and code:
            self._say(f"tracking: the process that sends rows has ended (exit code {code}). {self._advice}")

    @property
    def _command(self) -> str:
        return shlex.join(["planner", "track", self._url])

    @property
    def _advice(self) -> str:
        return f"Training goes on. Send the rows later: {self._command}"

    def __exit__(self, *_error: object) -> None:
        if self._process is None or self._listening is None:
            return
        self._is_ending = True
        end_child(self._process)
        with reminded(self._say, f"tracking: waiting at most {END_LIMIT_S:.0f} s for the last steps to be sent"):
            self._listening.join(_PATIENCE_S)
        if self._listening.is_alive() or self._process.returncode:
            self._say(f"tracking: send the rest later: {self._command}")


def start_child(job: Job, url: str, end: Mapping[str, Any]) -> "subprocess.Popen[bytes]":
    """Start the child for the trackers of a job. It sends until `end_child`, or until this process ends.

    Args:
        job: its section `tracking` names the trackers.
        url: the run's folder.
        end: the values of `planner.tracking.child.End` that are not the defaults.

    Raises:
        OSError: no process can be started.
    """
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "planner.tracking"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        start_new_session=True,  # Ctrl-C and a closed terminal must reach only the driver
    )
    settings = {"url": url, "job": job.model_dump(mode="json", by_alias=True), "end": dict(end)}
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it has ended already, as its exit code says
        process.stdin.write(json.dumps(settings).encode() + b"\n")
        process.stdin.flush()
    return process


def lines_of(process: "subprocess.Popen[bytes]") -> Iterator[str]:
    """Yield the child's messages until it ends."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            yield line.decode(errors="replace").rstrip()


def end_child(process: "subprocess.Popen[bytes]") -> None:
    """Tell the child to send the rest and to end. Returns at once."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
