"""A DCP checkpoint writer whose local files get the permissions of the run's folder.

It reports a full disk as such, for local folders and URLs.
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

from planner.base import progress_counter
from planner.base.disk import no_room
from planner.base.permissions import make_folder, opener_within
from planner.store.storage import Storage


class _CountedFile(io.FileIO):
    """A file that counts each written piece as a unit of work."""

    def write(self, content: Any) -> int:
        written = super().write(content)
        progress_counter.count_work()
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


class DiskFullWriter(FileSystemWriter):
    """A local writer that raises the disk's own error if the disk is full. torch hides it behind `unexpected pos`."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this worker's part.

        Raises:
            OSError: the disk is full, or cannot be written.
        """
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            if full := no_room(error):
                raise full from None
            raise


class _RemoteWriter(DiskFullWriter, FsspecWriter):  # type: ignore[misc]
    """A writer to fsspec URLs that raises the store's own error if the store is full."""


def tensor_writer(storage: Storage, folder: str) -> FileSystemWriter:
    """A writer to a folder of the run."""
    if not storage.is_local:
        remote: FileSystemWriter = _RemoteWriter(storage.path(folder))
        return remote
    writer = DiskFullWriter(storage.path(folder))
    writer.fs = _PrivateFiles(Path(storage.path("")))
    return writer
