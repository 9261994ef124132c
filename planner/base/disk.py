"""Local paths, bounded reads, and the words for a full disk, for every room.

Files that a stranger may have made are opened here: only regular files, and never more bytes than the caller allows.
"""

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

_NO_ROOM = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}


def expanded(path: str) -> Path:
    """The path with `~` or `~user` replaced by that home folder, or unchanged if there is no such home."""
    try:
        return Path(os.path.expanduser(path))  # noqa: PTH111  a Path's raises RuntimeError
    except ValueError:  # a NUL in a user's name
        return Path(path)


def full_url(path: str) -> str:
    """A URL unchanged; a local path in full, for a process with another working directory."""
    return path if "://" in path else str(expanded(path).absolute())


def is_file(path: str | Path) -> bool:
    """Whether a regular file lies there. No disk takes a name that is too long or has a NUL: that is no file."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: str | Path) -> bool:
    """Whether a folder lies there, in the sense of `is_file`."""
    return os.path.isdir(path)  # noqa: PTH112


def local_folder(path: str) -> Path | None:
    """The folder of a model that lies here, by its full path; none: `path` is a name on the hub."""
    folder = expanded(path)
    return folder.absolute() if folder.is_dir() else None


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file for reading. A pipe or a device is refused at once: opening a pipe would wait for a writer.

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
    # Files in /proc and /sys report a size of 0 but have content. /proc/kmsg never ends.
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
    """At most `most_bytes` bytes of a regular file, from byte `start` on.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with open_regular(path) as stream:
        # `read` allocates all the bytes that it is asked for, so it is asked for no more than there are.
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
    """The error of a full disk or a used-up quota in this error's chain of causes; none if there is no such error.

    torch's writer, for example, raises its own RuntimeError while it handles the disk's error.
    """
    found: BaseException | None = error
    while found is not None and not (isinstance(found, OSError) and found.errno in _NO_ROOM):
        found = found.__cause__ or found.__context__
    return found


def disk_full_text(error: OSError, what: str, needed_bytes: int, folder: Path | None) -> str:
    """Why there is no room, how much `what` needs, and how much is free.

    Args:
        error: what `no_room` returned.
        what: the thing that could not be written.
        needed_bytes: its size.
        folder: where it was written; none if that is not on this machine.
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
