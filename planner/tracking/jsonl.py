"""A file with one JSON object per step."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from planner.base.disk import expanded
from planner.base.json_text import json_object
from planner.base.permissions import make_folder, opener_within
from planner.errors import TrackerUnavailable
from planner.job.tracking import JsonlTracking
from planner.tracking.row import Row
from planner.tracking.tracker import TrackedRun

_TAIL_BYTES = 2**16
"""read first from the end of the file. A row may be longer"""


def check(section: JsonlTracking, url: str) -> None:
    """Check that the rows have a file.

    Raises:
        TrackerUnavailable: the run is at a URL, and the section names no file.
    """
    if "://" in url and not section.path:
        raise TrackerUnavailable(f"{url}: jsonl needs a file on this machine. Write tracking.path")


class JsonlFile:
    """Appends lines such as `{"run_id": "...", "step": 12, "time_s": 1.7e9, "train/loss": 2.5}`.

    Infinity and NaN become null.
    """

    tracker_id = ""

    def __init__(self, path: Path, root: Path, run_id: str) -> None:
        self._run_id = run_id
        make_folder(path.parent, root)
        # Open once, so that a torn line is cut before anything is appended.
        self._stream = open(path, "ab", opener=opener_within(root))  # noqa: SIM115 closed by `close`
        self._last_step = _cut_torn_line(path, run_id)

    def last_step(self) -> int:
        """The step of the last whole line, or -1."""
        return self._last_step

    def log(self, rows: Sequence[Row]) -> None:
        """Append one line per row, and flush them to the disk."""
        self._stream.write("".join(_line(row, self._run_id) for row in rows).encode())
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def live(self, values: Mapping[str, float]) -> None:
        """Ignored: a file is only appended to."""

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def open_tracker(section: JsonlTracking, run: TrackedRun) -> JsonlFile:
    """Open the file for appending.

    Raises:
        OSError: the file cannot be written.
    """
    path = expanded(section.path).absolute() if section.path else Path(run.folder) / "tracking.jsonl"
    return JsonlFile(path, Path(run.folder) if run.folder and not section.path else path.parent, run.run_id)


def _line(row: Row, run_id: str) -> str:
    values = {name: value if math.isfinite(value) else None for name, value in row.values.items()}
    return json.dumps({"run_id": run_id, "step": row.step, "time_s": row.time_s, **values}, allow_nan=False) + "\n"


def _cut_torn_line(path: Path, run_id: str) -> int:
    """Cut a last line that a crash left torn, and return the step of the last whole line, or -1.

    Raises:
        TrackerUnavailable: the last whole line is not one of this run's.
    """
    with path.open("r+b") as stream:
        whole, end = _last_line(stream)
        stream.truncate(end)
    if not whole:
        return -1
    try:
        row = json_object(whole)
        step, found = int(row["step"]), row["run_id"]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise _not_ours(path, "no row of planner's") from error
    if found != run_id:
        raise _not_ours(path, "a row of another run")
    return step


def _last_line(stream: BinaryIO) -> tuple[bytes, int]:
    """The last whole line, and where it ends. Empty if no line is whole."""
    size_bytes, most_bytes = stream.seek(0, os.SEEK_END), _TAIL_BYTES
    while True:
        begin = max(size_bytes - most_bytes, 0)
        stream.seek(begin)
        tail = stream.read()
        end = tail.rfind(b"\n") + 1
        before = tail.rfind(b"\n", 0, max(end - 1, 0)) + 1
        if before or not begin:
            return tail[before:end], begin + end
        most_bytes *= 2


def _not_ours(path: Path, what: str) -> TrackerUnavailable:
    return TrackerUnavailable(f"{path}: its last line is {what}. Write another tracking.path, or remove the file")
