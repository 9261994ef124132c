"""Local paths, bounded reads, and the message for a full disk.

Files from untrusted sources are opened here: only regular files, and never more bytes than the caller allows.
"""

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

_NO_ROOM = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}


class NotRegularError(OSError):
    """A pipe, a socket or a device has the name of a file."""


def expanded(path: str) -> Path:
    """The path with `~` or `~user` replaced by that home folder. Unchanged if there is no such home."""
    try:
        return Path(os.path.expanduser(path))  # noqa: PTH111  Path.expanduser raises RuntimeError
    except ValueError:  # a NUL in a user's name
        return Path(path)


def no_folder_above(path: Path) -> Path | None:
    """What is at the path, or at the nearest path above it that exists, if that is no folder. None if it is one."""
    there = next((place for place in (path, *path.parents) if os.path.lexists(place)), None)
    return None if there is None or os.path.isdir(there) else there  # noqa: PTH112  Path.is_dir may raise


def cache_folder() -> Path:
    """The folder for what planner keeps on this machine. It may not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(os.environ.get("PLANNER_CACHE") or f"{home}/planner")


def absolute_url(path: str) -> str:
    """A URL unchanged, a local path made absolute, so that a process in another directory can use it."""
    return path if "://" in path else str(expanded(path).absolute())


def is_relative(path: str) -> bool:
    """Whether a path starts at the folder that planner runs in: no URL, and not from the root or a home folder."""
    return "://" not in path and not path.startswith(("/", "~"))


def place_text(path: str) -> str:
    """Which folder a relative path starts at, for an error about it: ` (relative to /home/me, where planner runs)`."""
    return f" (relative to {Path.cwd()}, where planner runs)" if is_relative(path) else ""


def is_file(path: str | Path) -> bool:
    """Whether `path` is a regular file. False for a name that is too long or contains a NUL."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: str | Path) -> bool:
    """Whether `path` is a folder. False for a name that is too long or contains a NUL."""
    return os.path.isdir(path)  # noqa: PTH112


def local_folder(path: str) -> Path | None:
    """The absolute path of a model's folder on this machine. None if there is none: `path` is a name on the hub."""
    folder = expanded(path)
    return folder.absolute() if folder.is_dir() else None


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading in binary mode. Never blocks, as opening a pipe for reading would.

    Raises:
        OSError: the file cannot be opened, or is a folder, a pipe, a socket or a device.
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
    # Files in /proc and /sys report a size of 0 but have content. /proc/kmsg never ends.
    if not stat.S_ISREG(found.st_mode) or (not found.st_size and _has_bytes(descriptor)):
        raise NotRegularError(errno.EINVAL, "a pipe or a device, no regular file", path)


def _has_bytes(descriptor: int) -> bool:
    try:
        return bool(os.pread(descriptor, 1, 0))
    except BlockingIOError:  # a device that has no byte yet
        return True


def read_bounded(path: str | Path, most_bytes: int) -> bytes:
    """The whole content of a regular file.

    Raises:
        OSError: the file cannot be read, is not a regular file, or has more than `most_bytes` bytes.
    """
    content = read_part(path, 0, most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"the file has more than {most_bytes} bytes", str(path))
    return content


def read_part(path: str | Path, start: int, most_bytes: int) -> bytes:
    """At most `most_bytes` bytes of a regular file, from byte `start` on.

    Raises:
        OSError: the file cannot be read, or is not a regular file.
    """
    with open_regular(path) as stream:
        # `read` allocates as many bytes as it is asked for, so ask for no more than the file has.
        left = os.fstat(stream.fileno()).st_size - start
        stream.seek(start)
        return stream.read(max(min(left, most_bytes), 0))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power failure. A new file's name is on disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def no_room(error: BaseException) -> OSError | None:
    """The error of a full disk or a used-up quota in this error's chain of causes, or None.

    The chain matters because torch's writer raises its own RuntimeError while it handles the disk's error.
    """
    found: BaseException | None = error
    while found is not None and not (isinstance(found, OSError) and found.errno in _NO_ROOM):
        found = found.__cause__ or found.__context__
    return found


def disk_full_text(error: OSError, what: str, needed_bytes: int, folder: Path | None) -> str:
    """The message for a full disk: the cause, how much `what` needs, and how much is free.

    Args:
        error: what `no_room` returned.
        what: the thing that could not be written, such as "a commit".
        needed_bytes: its size.
        folder: the folder it was written to. None if that is not on this machine.
    """
    full = f"{_NO_ROOM[error.errno or errno.ENOSPC]}: {what} needs {size_text(needed_bytes)}"
    place = next((place for place in (folder, *folder.parents) if place.is_dir()), None) if folder else None
    return f"{full}, and {size_text(shutil.disk_usage(place).free)} are free" if place else full


def size_text(num_bytes: int) -> str:
    """A size in decimal units, as disks are sold: `1.2 GB`."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if num_bytes >= 10**power:
            return f"{num_bytes / 10**power:.1f} {unit}"
    return f"{num_bytes} bytes"
