"""Reads the text of a file that a user names. An error says what was found and what to do."""

import errno
from pathlib import Path

from planner.base.disk import read_bounded
from planner.errors import printable

MAX_BYTES = 2**20


class Unreadable(Exception):
    """The file has no text that can be read. The message says what was found and what to do."""


def read_text(path: str | Path, kind: str) -> str:
    """The file's text. `kind` names it in errors, such as `job file`.

    Raises:
        Unreadable: there is no file, it is larger than 1 MiB, or it is not UTF-8 text.
    """
    try:
        return _decode(read_bounded(path, MAX_BYTES))
    except OSError as error:
        raise Unreadable(_why_unread(error, kind)) from None
    except ValueError:  # a NUL, or what the file system cannot encode
        raise Unreadable("found an impossible file name. Write the path of a file") from None


def _why_unread(error: OSError, kind: str) -> str:
    one = f"an {kind}" if kind[:1] in "aeiou" else f"a {kind}"
    if isinstance(error, FileNotFoundError):
        return f"found no such file. Write the path of {one}"
    if isinstance(error, IsADirectoryError):
        return f"found a directory. Write the path of {one} in it"
    if isinstance(error, PermissionError):
        return "found a file that you may not read. Give yourself permission to read it"
    if error.errno == errno.EFBIG:
        return f"found more than {MAX_BYTES} bytes. Write the path of {one}, which has at most 1 MiB"
    if error.errno in {errno.EINVAL, errno.ENXIO}:  # ENXIO: a socket
        return "found a pipe or a device. Write the path of a regular file"
    return f"found a file that cannot be read ({printable(error.strerror or str(error))}). Write another path"


def _decode(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        found = f"found byte 0x{data[error.start]:02x} at byte offset {error.start}, which is not UTF-8"
        raise Unreadable(f"{found}. Save the file as UTF-8 text") from None
    if (offset := data.find(b"\0")) >= 0:
        found = f"found a NUL byte at byte offset {offset}, so this is a binary file"
        raise Unreadable(f"{found}. Write the path of a text file")
    return text
