"""Finds out whether a place can hold a run, by doing there on small files what a run will do. Removes them again.

A run makes folders, writes a file and renames it over another, makes a file only if its name is free (a hard link on
this machine), appends, lists, reads parts, and removes. A start and a dry run both do this before anything is started.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fsspec.implementations.memory import MemoryFileSystem

from planner.base.disk import no_folder_above, no_room
from planner.errors import DiskFull, PlannerError, StoreError
from planner.store.storage import Storage, reason_of

# An empty file can be written to a full disk.
_FIRST, _SECOND = bytes(4096), b"\1" * 4096
_ADVICE = "Choose another checkpoint.path"
# What a run makes in its folder. The names stand in docs/architecture.md, too.
_FOLDERS = ("checkpoints", "drivers", "generations", "held", "jobs", "ledger", "manifests", "ray", "reference")


def require_run_place(storage: Storage) -> None:
    """Do on small files what a run will do there, and remove them, also on errors and Ctrl-C.

    Args:
        storage: the run's folder, which need not exist.

    Raises:
        StoreError: a run cannot be kept there. The message says which operation failed, and why.
        DiskFull: there is no room for a few kB.
    """
    require_kept_apart(storage)
    if text := file_in_the_way(storage):  # also a dead link, of which listing says that nothing is there
        raise StoreError(text)
    made = _missing_folders(storage)
    probe = f"probe-{uuid.uuid4().hex}"
    try:
        _try_all(storage, probe)
        _try_folders(storage, f".{probe}")
    finally:
        with suppress(StoreError):  # if the probe could be made, but not removed, `_try_all` has said so
            storage.delete(probe)
        _remove(made)


def require_kept_apart(storage: Storage) -> None:
    """Check that the storage is outside this process, whose end would end it.

    Raises:
        StoreError: it is in this process's memory.
    """
    if isinstance(storage.file_system, MemoryFileSystem):
        raise StoreError(in_memory_text(storage.url))


def in_memory_text(url: str) -> str:
    """Why a URL of `memory://` can hold no run. Empty for any other path or URL."""
    if not url.startswith("memory://"):
        return ""
    return (
        f"{url}: each process has a memory:// of its own, so the driver and the workers would not see each other's "
        "files. Set checkpoint.path to a folder that every node sees, or to a URL such as s3://bucket/run"
    )


def file_in_the_way(storage: Storage) -> str:
    """Why a run cannot be in a folder that is a file, or below one. Empty if no file is in the way."""
    if not storage.is_local:
        return ""
    root = Path(storage.path(""))
    if (place := no_folder_above(root)) is None:
        return ""
    is_file = os.path.isfile(place)  # noqa: PTH113  Path.is_file raises where one may not look
    below = "" if place == root else f", and the run would be below it, in {root}"
    other = place.with_name(f"{place.name}-run") if is_file else "runs/NAME"
    return (
        f"checkpoint.path: {place} is {'a file' if is_file else 'not a folder'}{below}. Write a folder, which need not "
        f"exist yet, such as {other}"
    )


def _try_all(storage: Storage, probe: str) -> None:
    """Do all operations below the folder `probe`.

    Raises:
        StoreError: one of them failed, or did something else than it should.
    """
    whole, once, log, hidden = (f"{probe}/{name}" for name in ("whole", "once", "log", ".hidden"))
    with _trying(storage, "write"):
        storage.make_folder(probe)
        for content in (_FIRST, _SECOND):
            storage.write(whole, content)
        storage.write(hidden, b"")
    with _trying(storage, "make a file only if its name is free"):
        was_made = [storage.create(once, content) for content in (_FIRST, _SECOND)]
    with _trying(storage, "append to a file"):
        for content in (_FIRST, _SECOND):
            storage.append(log, content)
        storage.sync(log)
        storage.sync_folder(probe)
    with _trying(storage, "read"):
        found = [storage.read(whole), storage.read(once), storage.read(log)]
        part, after = storage.read_part(log, len(_FIRST), 2 * len(_SECOND)), storage.read_from(log, 2 * len(_FIRST))
    with _trying(storage, "list a folder"):
        names, sizes = storage.names(probe), storage.sizes_bytes(probe)
    with _trying(storage, f"remove {probe}"):
        storage.delete(probe)
        is_left = storage.exists(whole)
    _require(storage, "keeps no files that are written twice", found[0] == _SECOND)
    _require(storage, "writes over a file that must only be made once", was_made == [True, False])
    _require(storage, "writes over a file that must only be made once", found[1] == _FIRST)
    _require(storage, "does not append to a file", found[2] == _FIRST + _SECOND)
    _require(storage, "does not read parts of a file", (part, after) == (_SECOND, b""))
    _require(storage, "does not list files", names == ["log", "once", "whole"])
    _require(storage, "does not list the sizes of files", sizes.get("log") == len(_FIRST + _SECOND))
    _require(storage, "does not remove files", not is_left)


def _try_folders(storage: Storage, probe: str) -> None:
    """Make an empty file in each folder of the run that is there. Another user may have made one of them.

    An object store has no folders, and a whole bucket has one owner.

    Raises:
        StoreError: one of them is a file, cannot be written, or leads out of the run.
    """
    if not storage.is_local:
        return
    for folder in sorted({*_FOLDERS} & {*storage.names("")}):
        storage.names(folder)  # says more of a link that leads out
        if no_folder_above(Path(storage.path(folder))):
            raise StoreError(f"{storage.url}: {folder} is no folder there, and the run would need one. {_ADVICE}")
        with _trying(storage, f"write to {folder}"):
            storage.append(f"{folder}/{probe}", b"")  # unlike `write`, it waits for no disk
            storage.delete(f"{folder}/{probe}")


def _require(storage: Storage, fault: str, is_good: bool) -> None:
    if not is_good:
        raise StoreError(f"{storage.url}: its file system {fault}, so it can hold no run. {_ADVICE}")


@contextmanager
def _trying(storage: Storage, what: str) -> Iterator[None]:
    """Name the operation that fails.

    Raises:
        DiskFull: there is no room.
        StoreError: an operation failed.
    """
    try:
        yield
    except PlannerError as error:
        if (full := no_room(error)) is not None:
            raise DiskFull(storage.disk_full_text(full, "a small file", len(_FIRST))) from error
        cause = error.__cause__
        if cause is None:  # the store itself refuses, and says why
            raise
        if isinstance(cause, OSError) and cause.filename2 is not None:
            what = "rename a file" if what == "write" else "make a hard link to a file"
        raise StoreError(f"{storage.url}: cannot {what} there ({reason_of(cause)}). {_ADVICE}") from error


def _missing_folders(storage: Storage) -> list[Path]:
    """The run's folder and those above it that do not exist, the innermost first. None for an object store."""
    if not storage.is_local:
        return []
    root = Path(storage.path(""))
    missing = []
    for folder in (root, *root.parents):
        if os.path.exists(folder):  # noqa: PTH110  Path.exists raises where one may not look
            break
        missing.append(folder)
    return missing


def _remove(folders: list[Path]) -> None:
    """Remove folders that this probe made. One in which another process has made a file stays."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
