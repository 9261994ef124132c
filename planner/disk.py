"""What more than one room asks of a disk."""

import errno
import os
import shutil
from pathlib import Path

_NO_ROOM = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}


def local_folder(path: str) -> Path | None:
    """The folder of a model that lies here, by its full path; none: `path` is a name on the hub."""
    folder = Path(path).expanduser()
    return folder.absolute() if folder.is_dir() else None


def sync_folder(folder: Path) -> None:
    """Let the names in it survive a power cut: that of a new file is on disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def no_room(error: BaseException) -> OSError | None:
    """The error of a full disk, or of a quota that is used up: this one, or one that it was raised after; else none.

    torch's writer, for one, raises a RuntimeError of its own while it handles the disk's.
    """
    found: BaseException | None = error
    while found is not None and not (isinstance(found, OSError) and found.errno in _NO_ROOM):
        found = found.__cause__ or found.__context__
    return found


def no_room_words(error: OSError, what: str, needed_bytes: int, folder: Path | None) -> str:
    """How much `what` needs and how much is free, for an error that `no_room` has found; `folder` is where, if here."""
    full = f"{_NO_ROOM[error.errno or errno.ENOSPC]}: {what} needs {size_words(needed_bytes)}"
    place = next((place for place in (folder, *folder.parents) if place.is_dir()), None) if folder else None
    return f"{full}, and {size_words(shutil.disk_usage(place).free)} are free" if place else full


def size_words(num_bytes: int) -> str:
    """A size in decimal units, as disks are sold: `1.2 GB`."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if num_bytes >= 10**power:
            return f"{num_bytes / 10**power:.1f} {unit}"
    return f"{num_bytes} bytes"
