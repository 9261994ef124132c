"""Reads and writes the files of a run's folder, on this machine, on a shared mount or at any fsspec URL."""

import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem, make_path_posix

from planner.base import progress_counter
from planner.base.disk import (
    NotRegularError,
    disk_full_text,
    no_folder_above,
    no_room,
    open_regular,
    read_part,
    sync_folder,
)
from planner.base.permissions import is_within, make_folder, opener_within
from planner.errors import DiskFull, PlannerError, StoreError, Unreachable, shortened

_CHUNK_BYTES = 2**22
# A manifest of 100,000 files has 15 MB. A generation's ledger of a million steps has 350 MB.
_MAX_DOCUMENT_BYTES = 2**26
MAX_BLOB_BYTES = 2**30
_MOST_REASON = 200
# Scheme of a URL -> the package with its file system.
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
# Object stores that cannot append: gcsfs writes anew instead, and adlfs appends to blobs of one kind only.
_CANNOT_APPEND = frozenset({"gs", "gcs", "abfs", "az"})
# The storage answers with these: there is no such file, or something else has its name.
_NOT_THERE = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, NotRegularError)


class Storage:
    """Named blobs below one root. Names are relative, with forward slashes. A name or link out of it is refused.

    A new folder on this machine is private to its owner (see `planner.base.permissions`).
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, self._root = _opened(url)
        self.is_local = isinstance(self._fs, LocalFileSystem)
        protocols = self._fs.protocol
        self._cannot_append = not _CANNOT_APPEND.isdisjoint({protocols} if isinstance(protocols, str) else protocols)

    @property
    def file_system(self) -> Any:
        """The fsspec file system, for a library that opens files itself."""
        return self._fs

    def path(self, name: str) -> str:
        """The path or URL of a blob, for a library that opens files itself."""
        return self._at(name) if self.is_local else str(self._fs.unstrip_protocol(self._at(name)))

    def key(self, name: str) -> str:
        """The path of a blob within its file system, without a protocol."""
        return self._at(name)

    def exists(self, name: str) -> bool:
        """Whether there is a blob or a folder of that name."""
        with _translated(self.url, name):
            return self._is_there(name)

    def names(self, folder: str) -> list[str]:
        """The names directly in a folder, sorted, without those that begin with a dot. Empty if there is no folder."""
        with _translated(self.url, folder):
            # fsspec remembers listings, and another process may have written since.
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(self._at(folder), detail=False)
            except FileNotFoundError:
                return []
        names = (str(path).rstrip("/").rsplit("/", 1)[-1] for path in found)
        # Files with a dot are still being written (`_temporary`).
        return sorted(name for name in names if not name.startswith("."))

    def sizes_bytes(self, folder: str) -> dict[str, int]:
        """Name -> size in bytes of what is directly in a folder, hidden names included. Empty if there is no folder."""
        with _translated(self.url, folder):
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(self._at(folder), detail=True)
            except FileNotFoundError:
                return {}
        return {str(each["name"]).rstrip("/").rsplit("/", 1)[-1]: int(each["size"] or 0) for each in found}

    def names_of(self, *folders: str) -> list[list[str]]:
        """`names` of several folders. A remote store is asked for all at once: each answer takes a while."""
        if self.is_local:
            return [self.names(folder) for folder in folders]
        with ThreadPoolExecutor(len(folders)) as pool:
            return list(pool.map(self.names, folders))

    def read(self, name: str, most_bytes: int = _MAX_DOCUMENT_BYTES) -> bytes:
        """The whole content of a blob.

        Raises:
            StoreError: it is missing, cannot be read, or has more than `most_bytes`.
        """
        with _translated(self.url, name):
            # One byte more, to notice that there are more.
            content = self._part(name, 0, most_bytes + 1)
        if len(content) > most_bytes:
            raise StoreError(f"{self.url}: {name} has more than {most_bytes} bytes, so planner did not write it")
        return content

    def read_from(self, name: str, offset: int) -> bytes:
        """A blob's bytes from `offset` on, at most a GiB. Empty if there is no blob or nothing after `offset`."""
        with _translated(self.url, name):
            try:
                return self._part(name, offset, MAX_BLOB_BYTES)
            except FileNotFoundError:
                return b""

    def read_first(self, name: str, most_bytes: int) -> bytes:
        """At most `most_bytes` from the start of a blob. Empty if there is no blob."""
        with _translated(self.url, name):
            try:
                return self._part(name, 0, most_bytes)
            except FileNotFoundError:
                return b""

    def read_part(self, name: str, offset: int, most_bytes: int) -> bytes:
        """At most `most_bytes` of a blob from `offset` on. Empty if there is no blob or nothing after `offset`."""
        with _translated(self.url, name):
            try:
                return self._part(name, offset, most_bytes)
            except FileNotFoundError:
                return b""

    def write(self, name: str, content: bytes) -> None:
        """Write a blob atomically: a reader sees the old content or the new content, never a part."""
        with self._written(name, len(content)):
            if self.is_local:
                with self._temporary(name, content) as temporary:
                    Path(temporary).replace(self._at(name))
                    # Without this, a power cut can undo the rename.
                    sync_folder(Path(self._at(name)).parent)
            else:
                # An object store shows an object only when it is complete.
                self._fs.pipe_file(self._at(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Put if absent. True if this call made the blob, false if it existed already."""
        with self._written(name, len(content)):
            if not self.is_local:
                return _made(lambda: self._fs.pipe_file(self._at(name), content, mode="create"))
            # `_made` is not around this, because a file in the place of a folder also raises FileExistsError.
            with self._temporary(name, content) as temporary:
                # A hard link is atomic and fails if the name is taken, also on NFS.
                is_new = _made(lambda: os.link(temporary, self._at(name)))
            if is_new:
                sync_folder(Path(self._at(name)).parent)
            return is_new

    def append(self, name: str, content: bytes) -> None:
        """Append to a blob. Only one process may write it.

        Where the store cannot append, the whole blob is put again, which is atomic.
        """
        with self._written(name, len(content)):
            if self._cannot_append:
                before = b""
                with suppress(FileNotFoundError):
                    before = bytes(self._fs.cat_file(self._at(name)))
                self._fs.pipe_file(self._at(name), before + content)
                return
            if self.is_local:
                self._make_folder(Path(self._at(name)).parent)
            with self._opened_to_append(name) as stream:
                stream.write(content)

    def disk_full_text(self, error: OSError, what: str, needed_bytes: int) -> str:
        """The message for an error that `planner.base.disk.no_room` returned: the sizes, and what to do."""
        sizes = disk_full_text(error, what, needed_bytes, Path(self._root) if self.is_local else None)
        return f"{self.url}: {sizes}. Make room there, then run the same command again"

    @contextmanager
    def _written(self, name: str, num_bytes: int) -> Iterator[None]:
        with _translated(self.url, name):
            try:
                yield
            except OSError as error:
                if (full := no_room(error)) is None:
                    raise
                raise DiskFull(self.disk_full_text(full, name, num_bytes)) from error

    def make_folder(self, name: str) -> None:
        """Make a folder that another library writes to, with the run's permissions. Object stores need none."""
        if self.is_local:
            with _translated(self.url, name):
                self._make_folder(Path(self._at(name)))

    def sync(self, name: str) -> None:
        """Make appended bytes survive a power cut. Object stores need no call for that."""
        if self.is_local:
            with _translated(self.url, name), Path(self._at(name)).open("rb") as stream:
                os.fsync(stream.fileno())

    def sync_folder(self, name: str) -> None:
        """Make the names in a folder survive a power cut. Object stores need no call for that."""
        if self.is_local:
            with _translated(self.url, name):
                sync_folder(Path(self._at(name)))

    def size_bytes(self, name: str) -> int:
        """The size of a blob in bytes, or -1 if it does not exist."""
        with _translated(self.url, name):
            try:
                return int(self._fs.info(self._at(name))["size"])
            except FileNotFoundError:
                return -1

    def sha256(self, name: str, on_piece: Callable[[], None] = progress_counter.count_work) -> str:
        """The SHA-256 of a blob, 64 hex digits. It is read in pieces, and `on_piece` is called after each."""
        digest = hashlib.sha256()
        with _translated(self.url, name), self._opened(name) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
                on_piece()
        return digest.hexdigest()

    def delete(self, name: str) -> None:
        """Remove a blob, or a folder with its content. A missing one is no error."""
        with _translated(self.url, name):
            if self._is_there(name):
                self._fs.rm(self._at(name), recursive=True)

    def _is_there(self, name: str) -> bool:
        # fsspec's own `exists` takes every error for a missing file: Ctrl-C, and a store that cannot be reached.
        try:
            self._fs.info(self._at(name))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _opened(self, name: str) -> Any:
        return open_regular(self._at(name)) if self.is_local else self._fs.open(self._at(name), "rb")

    def _part(self, name: str, start: int, most_bytes: int) -> bytes:
        """At most `most_bytes` of a blob from `start` on.

        Raises:
            StoreError: the caller reads a GiB or more, and the blob has more than that.
        """
        if not self.is_local:
            return self._remote_part(name, start, most_bytes)
        if most_bytes >= MAX_BLOB_BYTES and self.size_bytes(name) - start > most_bytes:
            raise StoreError(f"{self.url}: {name} has more than {most_bytes} bytes, so planner did not write it")
        return read_part(self._at(name), start, most_bytes)

    def _remote_part(self, name: str, start: int, most_bytes: int) -> bytes:
        # Stores refuse a range that begins at the end of an object, and gcsfs also logs that with a traceback. So the
        # size is asked for first, except where only an empty object has such a range.
        if start and self._remote_size_bytes(name) <= start:
            return b""
        try:
            return bytes(self._fs.cat_file(self._at(name), start=start, end=start + most_bytes))
        except FileNotFoundError:
            raise
        except Exception:  # file systems are other packages' code and may raise anything
            if self._remote_size_bytes(name) > start:
                raise
            return b""

    def _remote_size_bytes(self, name: str) -> int:
        self._fs.invalidate_cache()  # the size may be that of an earlier listing
        return int(self._fs.info(self._at(name))["size"])

    def _at(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/") or not _is_encodable(name):
            raise StoreError(f"{name!r} does not stay inside {self.url}")
        if not name:
            return self._root
        place = f"{self._root.rstrip('/')}/{name}"
        if self.is_local and not is_within(place, self._root):
            raise StoreError(
                f"{name!r} does not stay inside {self.url}: a symbolic link leads out of it. "
                "Remove the link, or set checkpoint.path to the folder that it leads to"
            )
        return place

    def _opened_to_append(self, name: str) -> Any:
        if not self.is_local:
            return self._fs.open(self._at(name), "ab")
        return open(self._at(name), "ab", opener=opener_within(Path(self._root)))

    def _make_folder(self, folder: Path) -> None:
        """Make a folder whose name, and those of its new parents, survive a power cut."""
        for made in make_folder(folder, Path(self._root)):
            # The user may not list a folder above the run's, and its file system may sync no folders.
            is_ours = is_within(str(made.parent), self._root)
            with suppress(PermissionError if is_ours else OSError):
                sync_folder(made.parent)

    @contextmanager
    def _temporary(self, name: str, content: bytes) -> Iterator[str]:
        folder, root = Path(self._at(name)).parent, Path(self._root)
        self._make_folder(folder)
        temporary = folder / f".{Path(name).name}.{uuid.uuid4().hex[:8]}"
        try:
            with open(temporary, "wb", opener=opener_within(root)) as stream:  # Path.open takes no opener
                stream.write(content)
                stream.flush()
                # Before the rename: after a power cut, a new name must not have old or no content.
                os.fsync(stream.fileno())
            yield str(temporary)
        finally:
            temporary.unlink(missing_ok=True)


def _is_encodable(name: str) -> bool:
    """Whether a file can have this name. A lone surrogate has no UTF-8 form."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the root on it.

    Raises:
        StoreError: the path or URL is not usable.
    """
    if "\0" in url:
        raise StoreError(f"{url}: a path must not contain a NUL byte")
    scheme, separator, rest = url.partition("://")
    if not separator:
        # Not through fsspec's URLs, which end at `::`: then `a::1` and `a::2` would be one folder.
        return LocalFileSystem(), str(make_path_posix(url))
    if not scheme or not rest:
        raise StoreError(f"{url}: a URL needs a scheme and a path, scheme://path")
    if "::" in url:
        raise StoreError(f"{url}: `::` chains file systems, and a run needs exactly one")
    try:
        file_system, root = fsspec.core.url_to_fs(url)
    except Exception as error:  # file systems are other packages' code and may raise anything
        raise StoreError(f"{url}: {_unopened_text(scheme, error)}") from error
    return file_system, str(root)


def _unopened_text(scheme: str, error: Exception) -> str:
    """Why a URL of this scheme could not be opened, and what to do."""
    if isinstance(error, ImportError) and scheme in _PACKAGES:
        return f"{scheme}:// needs the package {_PACKAGES[scheme]}. Install it with: pip install {_PACKAGES[scheme]}"
    if scheme not in {*fsspec.registry, *fsspec.available_protocols()}:
        return f"no file system is known for {scheme}://. Write a folder, or a URL such as s3://bucket/run"
    return f"cannot be opened ({reason_of(error)}). Check the URL, or choose another checkpoint.path"


def _made(make: Callable[[], object]) -> bool:
    try:
        make()
    except FileExistsError:
        return False
    return True


@contextmanager
def _translated(url: str, name: str) -> Iterator[None]:
    try:
        yield
        progress_counter.count_work()
    except PlannerError:
        raise
    except Exception as error:  # file systems are other packages' code and may raise anything
        # On this machine, anything but an OSError is a mistake in planner.
        if "://" not in url and not isinstance(error, OSError):
            raise
        kind = StoreError if isinstance(error, _NOT_THERE) else Unreachable
        if isinstance(error, NotADirectoryError) and (place := no_folder_above(Path(url))):
            raise kind(f"{url}: no folder here, because {place} is not one. Check the path") from error
        raise kind(f"{url}: cannot use {name or 'the folder'}: {reason_of(error)}") from error


def reason_of(error: BaseException) -> str:
    """An error of a file system in one line."""
    text = getattr(error, "strerror", None) or str(error).strip()
    if isinstance(error, FileNotFoundError) and text and not any(map(str.isspace, text)):
        return f"not found: {text}"  # gcsfs gives only a URL, others only a name
    if not text and isinstance(error, NotImplementedError):
        return "its file system has no such operation"
    first, *more = str(text or type(error).__name__).splitlines()
    # botocore and others put a heading above the reason.
    return shortened(f"{first} {more[0].strip()}", _MOST_REASON) if first.endswith(":") and more else first
