"""`slow:///folder`: a folder of this machine like a far store: 20 MB/s for all processes, 20 ms per call.

This folder goes into PYTHONPATH of the driver and of the cluster. fsspec then finds the file system by the entry point
beside this file, in every process.
"""

import contextlib
import fcntl
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

BYTES_PER_S = 20e6
CALL_S = 0.02
BUCKET = "PLANNER_BENCH_BUCKET"
"""environment: the file that all processes of one run share. It holds the moment from which the line is free"""
# A process asks for so many bytes at once, so that it does not lock the file for each small write.
_PIECE_BYTES = 2**18


class Bucket:
    """A line of a fixed rate that all processes of this machine share.

    `CLOCK_MONOTONIC` is the same in all of them.
    """

    def __init__(self, path: str, bytes_per_s: float = BYTES_PER_S) -> None:
        self._path, self._bytes_per_s = path, bytes_per_s

    def take(self, num_bytes: int) -> None:
        """Wait until so many bytes have passed."""
        time.sleep(max(0.0, self._reserve(num_bytes / self._bytes_per_s) - time.monotonic()))

    def _reserve(self, seconds: float) -> float:
        """Take the line for so long, behind all others. Returns when it is free again."""
        with self._locked() as file:
            content = os.pread(file, 8, 0)
            free_s: float = struct.unpack("d", content)[0] if len(content) == 8 else 0.0
            ends_s = max(free_s, time.monotonic()) + seconds
            os.pwrite(file, struct.pack("d", ends_s), 0)
        return ends_s

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def _bucket() -> Bucket:
    return Bucket(os.environ.get(BUCKET) or str(Path(tempfile.gettempdir()) / "planner-bench-bucket"))


class SlowFile:
    """A file whose bytes pass the line."""

    def __init__(self, raw: Any, bucket: Bucket) -> None:
        self._raw, self._bucket = raw, bucket
        self._untaken = 0

    def read(self, *size: int) -> bytes:
        """As a file."""
        content: bytes = self._raw.read(*size)
        self._took(len(content))
        return content

    def readinto(self, buffer: Any) -> int:
        """As a file."""
        count = int(self._raw.readinto(buffer))
        self._took(count)
        return count

    def write(self, content: Any) -> int:
        """As a file."""
        count = int(self._raw.write(content))
        self._took(memoryview(content).nbytes)
        return count

    def flush(self, *arguments: Any) -> None:
        """As a file. fsspec's flush may take an argument."""
        del arguments
        self._raw.flush()

    def close(self) -> None:
        """As a file."""
        self._raw.close()
        if self._untaken:
            untaken, self._untaken = self._untaken, 0
            self._bucket.take(untaken)

    def _took(self, num_bytes: int) -> None:
        self._untaken += num_bytes
        if self._untaken >= _PIECE_BYTES:
            untaken, self._untaken = self._untaken, 0
            self._bucket.take(untaken)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        for line in self._raw:
            self._took(len(line))
            yield line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class SlowFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files of this machine, at 20 MB/s and 20 ms per call. For planner it is an object store, not a local disk."""

    protocol = "slow"
    root_marker = "/"
    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._local = LocalFileSystem(auto_mkdir=True)
        self._bucket = _bucket()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return str(os.fspath(path)).removeprefix("slow://").rstrip("/") or "/"

    def _called(self, path: Any) -> str:
        """One call to the store. Returns the local path."""
        time.sleep(CALL_S)
        return str(self._strip_protocol(path))

    def ls(self, path: Any, detail: bool = True, **_: Any) -> Any:
        """The names in a folder."""
        return self._local.ls(self._called(path), detail=detail)

    def info(self, path: Any, **_: Any) -> Any:
        """Of a file or folder."""
        return self._local.info(self._called(path))

    def mkdir(self, path: Any, create_parents: bool = True, **_: Any) -> None:
        """Make a folder."""
        self._local.mkdir(self._called(path), create_parents=create_parents)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        """Make a folder and its parents."""
        self._local.makedirs(self._called(path), exist_ok=exist_ok)

    def rmdir(self, path: Any) -> None:
        """Remove an empty folder."""
        self._local.rmdir(self._called(path))

    def rm_file(self, path: Any) -> None:
        """Remove a file."""
        self._local.rm_file(self._called(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files or folders."""
        for each in path if isinstance(path, list) else [path]:
            self._local.rm(self._called(each), recursive=recursive, maxdepth=maxdepth)

    def mv(self, path1: Any, path2: Any, **_: Any) -> None:
        """Rename, which moves no bytes."""
        self._local.mv(self._called(path1), str(self._strip_protocol(path2)))

    def cp_file(self, path1: Any, path2: Any, **_: Any) -> None:
        """Copy within the store, which moves no bytes of ours."""
        self._local.cp_file(self._called(path1), str(self._strip_protocol(path2)))

    def created(self, path: Any) -> Any:
        """When a file was made."""
        return self._local.created(self._called(path))

    def modified(self, path: Any) -> Any:
        """When a file was changed."""
        return self._local.modified(self._called(path))

    def cat_file(self, path: Any, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes of a file from `start` to `end`."""
        content: bytes = self._local.cat_file(self._called(path), start=start, end=end)
        self._bucket.take(len(content))
        return content

    def pipe_file(self, path: Any, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Write a whole file, with `create` only if there is none. It appears at once, as in a store."""
        place = Path(self._called(path))
        self._bucket.take(len(value))
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=place.parent, prefix=".")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(value)
            if mode == "create":
                os.link(temporary, place)
            else:
                Path(temporary).replace(place)
        finally:
            Path(temporary).unlink(missing_ok=True)

    def open(self, path: Any, mode: str = "rb", **_: Any) -> SlowFile:
        """A file. A text mode is not known."""
        return SlowFile(self._local.open(self._called(path), mode), self._bucket)
