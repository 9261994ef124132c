"""DCP's writer of checkpoints: on this machine its files are as open as the run's folder, and no more.

A full disk is reported as such, wherever the files go.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from planner.base import work_counter
from planner.base.disk import no_room
from planner.base.permissions import make_folder, opener_within
from planner.store.storage import Storage


class _CountedFile(io.FileIO):
    """Each piece that is written counts as work done."""

    def write(self, content: Any) -> int:
        written = super().write(content)
        work_counter.count_work()
        return written


class _PrivateFiles(FileSystem):
    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        raw = _CountedFile(os.fspath(path), mode, opener=opener_within(self._root))
        with io.BufferedWriter(raw) if raw.writable() else io.BufferedReader(raw) as stream:
            yield stream

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        make_folder(Path(path), self._root)


class SaysNoRoom(FileSystemWriter):
    """A writer that raises the error of a full disk as it is. torch hides it behind `unexpected pos`."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this worker's part.

        Raises:
            OSError: there is no room for it, among other reasons.
        """
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            if full := no_room(error):
                raise full from None
            raise


class _RemoteWriter(SaysNoRoom, FsspecWriter):  # type: ignore[misc]
    """A writer to an object store that raises the error of a full disk as it is."""


def tensor_writer(storage: Storage, folder: str) -> FileSystemWriter:
    """A writer to a folder of the run's."""
    if not storage.is_local:
        remote: FileSystemWriter = _RemoteWriter(storage.path(folder))
        return remote
    writer = SaysNoRoom(storage.path(folder))
    writer.fs = _PrivateFiles(Path(storage.path("")))
    return writer
