"""What more than one room asks of a disk. Files of strangers are opened here: no pipe, no device, no end of memory."""

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

_NO_ROOM = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}


def expanded(path: str) -> Path:
    """The path with its `~` filled in; where that names no home that is known, the path as it is."""
    try:
        return Path(os.path.expanduser(path))  # noqa: PTH111  a Path's raises RuntimeError
    except ValueError:  # a NUL in a user's name
        return Path(path)


def local_folder(path: str) -> Path | None:
    """The folder of a model that lies here, by its full path; none: `path` is a name on the hub."""
    folder = expanded(path)
    return folder.absolute() if folder.is_dir() else None


def open_regular(path: str | Path) -> BinaryIO:
    """The file to read from, without a wait: opening a pipe waits for a writer, and a device may never end.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe, a socket or a device.
    """
    descriptor = os.open(Path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require_regular(descriptor, str(path))
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require_regular(descriptor: int, path: str) -> None:
    found = os.fstat(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    # What lies in /proc and /sys calls itself a file of no bytes and has some all the same, /proc/kmsg without an end.
    if not stat.S_ISREG(found.st_mode) or (not found.st_size and _has_bytes(descriptor)):
        raise OSError(errno.EINVAL, "a pipe or a device, no regular file", path)


def _has_bytes(descriptor: int) -> bool:
    try:
        return bool(os.pread(descriptor, 1, 0))
    except BlockingIOError:  # not now
        return True


def read_bounded(path: str | Path, most_bytes: int) -> bytes:
    """The whole content of a regular file.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than `most_bytes` bytes.
    """
    content = read_part(path, 0, most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return content


def read_part(path: str | Path, start: int, most_bytes: int) -> bytes:
    """At most so many bytes of a regular file from `start` on.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with open_regular(path) as stream:
        # Not more is asked for than is there: Python sets aside as many bytes as it is asked for.
        left = os.fstat(stream.fileno()).st_size - start
        stream.seek(start)
        return stream.read(max(min(left, most_bytes), 0))


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
