"""A DCP checkpoint writer that takes the SHA-256 of each file while it writes the file.

Local files get the permissions of the run's folder. The store's own errors are raised, for local folders and URLs.
"""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint._fsspec_filesystem import FileSystem as RemoteFileSystem
from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from planner.base.disk import no_room
from planner.base.permissions import make_folder, opener_within
from planner.store.records import FileDigest
from planner.store.storage import Storage

# After each piece an abandoned write can end, and a slow disk shows that it is not a hung one.
_PIECE_BYTES = 2**22
# torch writes a tensor in some 40 pieces of a few bytes. Each would cost Python's lock, which training needs.
_SMALL_BYTES = 2**16
# The page cache writes back so much at a time. A whole file at once would stall other writers of the disk.
_SYNC_BYTES = 2**28

# With a number of bytes, torch would wait for the training stream again and again while it copies ahead from a GPU.
_NOTHING_AHEAD = 0
_sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the second

OnPiece = Callable[[], None]
"""called after each written piece of at most 4 MiB. It may raise, to end the write"""


class _RootCauseWriter(FileSystemWriter):
    """A local writer that raises the store's own error, which torch hides behind `unexpected pos`."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this worker's part.

        Raises:
            Exception: as the store raises it. A full disk is an OSError.
        """
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:  # torch's own, raised while it handles the store's
            if full := no_room(error):
                raise full from None
            if "unexpected pos" in str(error) and error.__context__ is not None:
                raise error.__context__ from None
            raise


class _RemoteWriter(_RootCauseWriter, FsspecWriter):  # type: ignore[misc]
    """A writer to fsspec URLs that raises the store's own error."""


def tensor_writer(
    storage: Storage, folder: str, on_piece: OnPiece = lambda: None
) -> tuple[FileSystemWriter, dict[str, FileDigest]]:
    """A writer to a folder of the run, and the digests of the files that it has written so far, by name."""
    digests: dict[str, FileDigest] = {}
    if storage.is_local:
        writer = _RootCauseWriter(storage.path(folder), per_thread_copy_ahead=_NOTHING_AHEAD)
        writer.fs = _PrivateFiles(Path(storage.path("")), digests, on_piece)
        return writer, digests
    # Without `sync_files`: torch would call `os.sync` for a stream without a descriptor.
    remote: FileSystemWriter = _RemoteWriter(
        storage.path(folder), sync_files=False, per_thread_copy_ahead=_NOTHING_AHEAD
    )
    remote.fs = _RemoteFiles(storage.file_system, digests, on_piece)
    return remote, digests


class _HashedStream:
    """Writes to a stream in pieces, and takes the SHA-256 of what it writes. torch never seeks in it."""

    def __init__(self, raw: Any, on_piece: OnPiece, *, is_synced: bool) -> None:
        self._raw, self._on_piece, self._is_synced = raw, on_piece, is_synced
        self._digest, self._size_bytes, self._unsynced_bytes = sha256(), 0, 0
        self._small = bytearray()

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        self._size_bytes += len(view)
        if len(view) + len(self._small) < _SMALL_BYTES:
            self._small += view
            return len(view)
        self._write_small()
        for start in range(0, len(view), _PIECE_BYTES):
            self._write_piece(view[start : start + _PIECE_BYTES])
        return len(view)

    def _write_small(self) -> None:
        """Write what small pieces have gathered."""
        if self._small:
            self._write_piece(self._small)
            self._small = bytearray()

    def _write_piece(self, piece: Any) -> None:
        self._raw.write(piece)
        # In this thread: hashlib releases Python's lock for more than 2,047 bytes, so training goes on meanwhile.
        self._digest.update(piece)
        self._unsynced_bytes += len(piece)
        self._on_piece()
        if self._is_synced and self._unsynced_bytes >= _SYNC_BYTES:
            self._raw.flush()
            _sync(self._raw.fileno())
            self._unsynced_bytes = 0

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        self._write_small()
        self._raw.flush()

    def fileno(self) -> int:
        self.flush()  # torch syncs this descriptor, perhaps with bytes still in the buffer
        return int(self._raw.fileno())

    def close(self) -> None:
        """Do nothing. `create_stream` closes the stream below."""

    def digest(self, name: str) -> FileDigest:
        return FileDigest(name=name, size_bytes=self._size_bytes, sha256=self._digest.hexdigest())


def _final_name(path: str | os.PathLike[str]) -> str:
    """The name of a file when it is complete. torch writes `.metadata` under another name first."""
    return os.path.basename(os.fspath(path)).removesuffix(".tmp")  # noqa: PTH119  it may be a URL


class _PrivateFiles(FileSystem):
    def __init__(self, root: Path, digests: dict[str, FileDigest], on_piece: OnPiece) -> None:
        self._root, self._digests, self._on_piece = root, digests, on_piece

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        raw = io.FileIO(os.fspath(path), mode, opener=opener_within(self._root))
        try:
            with io.BufferedWriter(raw) as buffered:
                stream = _HashedStream(buffered, self._on_piece, is_synced=True)
                yield stream  # type: ignore[misc]  # it has the methods of `io.IOBase` that torch calls
                stream.flush()
        except BaseException:
            Path(path).unlink(missing_ok=True)  # makes room on a full disk, as torch does for URLs
            raise
        self._digests[_final_name(path)] = stream.digest(_final_name(path))

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        make_folder(Path(path), self._root)


class _RemoteFiles(RemoteFileSystem):  # type: ignore[misc]  # mypy ignores torch's file
    def __init__(self, opened: Any, digests: dict[str, FileDigest], on_piece: OnPiece) -> None:
        self.fs, self._digests, self._on_piece = opened, digests, on_piece

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        with super().create_stream(path, mode) as raw:
            stream = _HashedStream(raw, self._on_piece, is_synced=False)
            yield stream  # type: ignore[misc]  # it has the methods of `io.IOBase` that torch calls
            stream.flush()
        self._digests[_final_name(path)] = stream.digest(_final_name(path))
