"""Weights & Biases."""

import os
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.base.permissions import make_folder
from planner.job.tracking import WandbTracking
from planner.tracking.row import Row
from planner.tracking.tracker import TrackedRun

_INIT_LIMIT_S = 60.0
_FINISH_LIMIT_S = 50.0
_QUIET_S, _QUIET_LIMIT_S = 2.0, 20.0
# A .wandb file: a header, then blocks with records, as in LevelDB's log. A record may lie in several parts.
_FILE_HEADER_BYTES, _BLOCK_BYTES, _PART_HEADER_BYTES = 7, 2**15, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class WandbRun:
    """One run of W&B. Its id is planner's own of the run, so another process continues it."""

    def __init__(self, section: WandbTracking, run: TrackedRun) -> None:
        import wandb

        folder = Path(run.folder or tempfile.mkdtemp(prefix="planner-wandb-"))
        if run.folder:
            make_folder(folder / "wandb", folder)
        self.tracker_id = run.tracker_id or run.run_id
        mode: Any = os.environ.get("WANDB_MODE") or "online" if section.mode == "online" else section.mode
        self._offline = mode in {"offline", "dryrun"}
        self._folder = folder / "wandb"
        self._last_step = -1
        if self._offline:
            files = list(self._folder.glob(f"offline-run-*-{self.tracker_id}/run-{self.tracker_id}.wandb"))
            _wait_until_quiet(files)
            self._last_step = max((step for file in files for step in steps_of_file(file)), default=-1)
        self._run: Any = wandb.init(
            id=self.tracker_id,
            resume=None if self._offline else "allow",
            project=section.project or run.name,
            entity=section.entity or None,
            group=section.group or None,
            name=section.name or run.name,
            tags=section.tags,
            config=dict(run.config),
            dir=str(folder),
            mode=mode,
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                init_timeout=_INIT_LIMIT_S,
                finish_timeout=_FINISH_LIMIT_S,
                finish_timeout_raises=True,
                x_disable_stats=True,  # this process does not train
                x_disable_meta=True,
                x_save_requirements=False,
                x_transaction_log_flush_interval=1.0,
            ),
        )
        if not self._offline:
            self._last_step = self._run.step - 1  # the server's, of a resumed run

    def last_step(self) -> int:
        """The highest step on the server, or of the offline files of this run. -1 if there is none."""
        return self._last_step

    def log(self, rows: Sequence[Row]) -> None:
        """Hand rows to W&B's own process, which writes them to a file and sends them in the background."""
        for row in rows:
            self._run.log({**row.values, "_timestamp": row.time_s}, step=row.step)

    def live(self, values: Mapping[str, float]) -> None:
        """Replace the values in the summary of the run."""
        self._run.summary.update(dict(values))

    def close(self) -> None:
        """Wait until everything is sent.

        Raises:
            TimeoutError: the server does not answer. The next run of the sender asks it what it has.
        """
        self._run.finish()


def open_tracker(section: WandbTracking, run: TrackedRun) -> WandbRun:
    """Open or continue the run of W&B.

    Raises:
        wandb.errors.Error: the server does not answer, or there is no key.
    """
    os.environ.setdefault("WANDB_SILENT", "true")
    return WandbRun(section, run)


# -- offline files


def _wait_until_quiet(files: Sequence[Path]) -> None:
    """Wait until nobody writes these files. W&B's own process outlives one that was killed, for a moment."""
    deadline_s = time.monotonic() + _QUIET_LIMIT_S
    while any(abs(time.time() - file.stat().st_mtime) < _QUIET_S for file in files):
        if time.monotonic() > deadline_s:
            return
        time.sleep(_QUIET_S / 4)


def steps_of_file(file: Path) -> Iterator[int]:
    """The steps of the rows in a .wandb file, in the order in which they were written."""
    from wandb.proto import wandb_internal_pb2

    for content in _records(file):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        if record.HasField("history"):
            yield int(record.history.step.num)


def _records(file: Path) -> Iterator[bytes]:
    """The records of a .wandb file. A torn end, as a crash leaves it, is left out."""
    with file.open("rb") as stream:
        parts: list[bytes] = []
        block = stream.read(_BLOCK_BYTES)
        at = _FILE_HEADER_BYTES
        while block:
            while at + _PART_HEADER_BYTES <= len(block):
                _, length, kind = struct.unpack_from("<IHB", block, at)
                if not _FULL <= kind <= _LAST:
                    break  # the rest of the block is empty
                part = block[at + _PART_HEADER_BYTES : at + _PART_HEADER_BYTES + length]
                if len(part) < length:
                    return
                at += _PART_HEADER_BYTES + length
                parts = [part] if kind in {_FULL, _FIRST} else [*parts, part]
                if kind in {_FULL, _LAST}:
                    yield b"".join(parts)
            block, at = stream.read(_BLOCK_BYTES), 0
