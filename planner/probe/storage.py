"""Writes and reads files of a probe's own folder, and measures how long that takes."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec

from planner.base.disk import no_room, open_regular, sync_folder
from planner.base.permissions import opener_within
from planner.errors import DiskFull, PlannerError, RunError, StoreError
from planner.probe.figures import Move
from planner.store.storage import Storage

_PIECE_BYTES = 8 * 2**20
# About the size of a manifest of a few workers.
SMALL_BYTES = 4096
# For a transfer to end when it is told to.
_WAIT_S = 20.0


class StorageProbe:
    """One node's files in a folder of its own below `url`. Everything outside that folder stays untouched.

    Args:
        url: a folder that exists, or an fsspec URL.
        folder: a name that nothing at `url` has. Several nodes may share it.
        node: what this node's files are called.
    """

    def __init__(self, url: str, folder: str, node: str) -> None:
        self.storage = Storage(url)
        self._url, self._folder, self._node = url, folder, node
        self._piece = os.urandom(_PIECE_BYTES)  # stores that compress would be too fast with zeros
        self._count = 0
        self._newest = ""
        self._stopped = threading.Event()
        self._in_use = threading.Lock()  # nothing may be written while, or after, the folder is removed

    def open(self) -> int:
        """Make the folder, and write this node's mark into it. Returns `free_bytes`.

        Raises:
            StoreError: there is no such folder, or it cannot be written to.
            DiskFull: nothing fits there.
        """
        if self.storage.is_local and not Path(self._url).is_dir():
            raise StoreError(f"{self._url}: no such folder. Make or mount it, or name one that exists")
        with self._used(), _translated(self._url):
            self.storage.make_folder(self._folder)
            self.storage.write(self._mark(self._node), self._node.encode())
        return self.free_bytes()

    def sees(self, other: str) -> bool:
        """Whether the mark of another node is here, so that both see the same storage."""
        with _translated(self._url):
            return self.storage.exists(self._mark(other))

    def free_bytes(self) -> int:
        """The free bytes at a folder of this machine, or -1 for a URL, where nobody knows."""
        return shutil.disk_usage(self._url).free if self.storage.is_local else -1

    def write(self, num_bytes: int, limit_s: float) -> Move:
        """Write a new file, flushed to the disk, in place of the last one. It ends early after `limit_s` seconds.

        Raises:
            StoreError: it cannot be written.
            DiskFull: it does not fit.
        """
        with self._used(), _translated(self._url, self.storage, num_bytes):
            self._next_name()
            began_s = time.perf_counter()
            with self._new_file() as stream:
                written = self._fill(stream, num_bytes, began_s + limit_s)
            if self.storage.is_local:
                sync_folder(Path(self.storage.path(self._folder)))
            return Move(num_bytes=written, seconds=time.perf_counter() - began_s)

    def read(self, limit_s: float) -> Move:
        """Read the newest file. On this machine it is dropped from the page cache before. Ends after `limit_s`."""
        with self._used(), _translated(self._url):
            self._drop_from_cache()
            began_s, done = time.perf_counter(), 0
            with self._opened() as stream:
                while piece := stream.read(_PIECE_BYTES):
                    done += len(piece)
                    if time.perf_counter() > began_s + limit_s:
                        break
                    self._check_stopped()
            return Move(num_bytes=done, seconds=time.perf_counter() - began_s)

    def small_files(self, repeats: int, limit_s: float) -> tuple[list[float], list[float]]:
        """Seconds of each put-if-absent of a small file, and of each atomic replacement of one."""
        content, ends_s = os.urandom(SMALL_BYTES), time.perf_counter() + limit_s
        puts: list[float] = []
        replacements: list[float] = []
        with self._used(), _translated(self._url):
            while len(puts) < repeats and (not puts or time.perf_counter() < ends_s):
                self._check_stopped()
                began_s = time.perf_counter()
                self.storage.create(self._name(f"put-{len(puts)}"), content)
                put_s = time.perf_counter()
                self.storage.write(self._name("replaced"), content)
                puts.append(put_s - began_s)
                replacements.append(time.perf_counter() - put_s)
        return puts, replacements

    def stop(self) -> None:
        """Make the transfer in another thread end soon, with an error."""
        self._stopped.set()

    def clean(self) -> str:
        """Remove the folder, also what other nodes have in it. Returns what could not be removed, as text."""
        self._stopped.set()
        if not self._in_use.acquire(timeout=_WAIT_S):
            return f"{self._url}/{self._folder} is still in use: the storage hangs. Remove it by hand"
        try:
            with _translated(self._url):
                self.storage.delete(self._folder)
        except PlannerError as error:
            return f"{self._url}/{self._folder} could not be removed ({error}). Remove it by hand"
        finally:
            self._in_use.release()
        return ""

    @contextmanager
    def _used(self) -> Iterator[None]:
        with self._in_use:
            self._check_stopped()
            yield

    def _name(self, name: str) -> str:
        return f"{self._folder}/{self._node}-{name}"

    def _mark(self, node: str) -> str:
        return f"{self._folder}/{node}-mark"

    def _new_file(self) -> Any:
        path = self.storage.path(self._newest)
        if not self.storage.is_local:
            return fsspec.open(path, "wb")
        return open(path, "xb", buffering=0, opener=opener_within(Path(self._url)))

    def _fill(self, stream: Any, num_bytes: int, ends_s: float) -> int:
        written = 0
        while written < num_bytes and (not written or time.perf_counter() < ends_s):
            self._check_stopped()
            # Each piece begins elsewhere, so that a store that looks for equal blocks finds none.
            start = (self._count * 4099 + written // _PIECE_BYTES * 517) % (_PIECE_BYTES // 2)
            piece = memoryview(self._piece)[start : start + min(num_bytes - written, _PIECE_BYTES // 2)]
            written += stream.write(piece)
        if self.storage.is_local:
            os.fsync(stream.fileno())
        return written

    def _opened(self) -> Any:
        path = self.storage.path(self._newest)
        return open_regular(path) if self.storage.is_local else fsspec.open(path, "rb")

    def _drop_from_cache(self) -> None:
        if self.storage.is_local and hasattr(os, "posix_fadvise"):
            with open_regular(self.storage.path(self._newest)) as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _next_name(self) -> None:
        if self._newest:
            self.storage.delete(self._newest)
        self._newest, self._count = self._name(f"{self._count:04d}"), self._count + 1

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise RunError("the probe was stopped")


@contextmanager
def _translated(url: str, storage: Storage | None = None, num_bytes: int = 0) -> Iterator[None]:
    try:
        yield
    except RunError as error:
        if isinstance(error, DiskFull) or error.__cause__ is None:
            raise
        raise StoreError(_unusable(url, error.__cause__)) from error
    except Exception as error:  # contract: file systems are other packages' code, and any error of theirs is told
        if storage is not None and (full := no_room(error)):
            raise DiskFull(storage.disk_full_text(full, "a file of the probe", num_bytes)) from error
        raise StoreError(_unusable(url, error)) from error


def _unusable(url: str, error: BaseException) -> str:
    reason = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), "") or type(error).__name__
    return f"{url}: cannot be written to and read: {reason}. Check the path and your rights there"
