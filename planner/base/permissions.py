"""Permissions of new folders and files: private to their owner, or as open as the run folder that a team shares.

The umask is ignored. With the usual one, every user of the machine could read a run's weights and its data's names.
"""

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

_FOLDER = 0o700
_FILE = 0o600
_FOLDER_BITS = 0o2777
"""the bits of a folder's mode that are copied. Setgid is one of them, so that new files get the team's group"""


def make_folder(folder: Path, root: Path) -> list[Path]:
    """Make a folder and its missing parents, and return the new ones. Existing folders keep their permissions.

    A new folder within `root` gets the permissions of `root`. `root` itself and folders above it are made private.

    Raises:
        OSError: the folder cannot be made.
    """
    missing: list[Path] = []
    made: list[Path] = []
    for place in (folder, *folder.parents):
        if place.is_dir():
            break
        missing.append(place)
    for place in reversed(missing):
        try:
            place.mkdir(_FOLDER)
        except FileExistsError:  # another process made it first, or a file has this name
            if not place.is_dir():
                raise
            continue
        made.append(place)
        if root in place.parents:
            _open_up(place, _mode_of(root))
    return made


def opener_within(root: Path) -> Callable[[str, int], int]:
    """An opener for `open(..., opener=)`. New files get the permissions of `root`, or are private if `root` is missing.

    An existing file is not written through a symbolic link.
    """

    def opened(path: str, flags: int) -> int:
        if not flags & os.O_CREAT:
            return os.open(path, flags)
        try:
            descriptor = os.open(path, flags | os.O_EXCL, _FILE)
        except FileExistsError:
            return os.open(path, flags | os.O_NOFOLLOW, _FILE)
        _open_up(descriptor, _mode_of(root) & 0o666)
        return descriptor

    return opened


def is_within(place: str, root: str) -> bool:
    """Whether `place` is `root` or lies below it, after following symbolic links."""
    real = os.path.realpath(root)
    return os.path.commonpath([os.path.realpath(place), real]) == real


def _mode_of(root: Path) -> int:
    try:
        return stat.S_IMODE(root.stat().st_mode) & _FOLDER_BITS
    except FileNotFoundError:
        return _FOLDER


def _open_up(made: Path | int, mode: int) -> None:
    # Some mounts have no modes. The file or folder then stays private, and only sharing is lost.
    if mode not in {_FOLDER, _FILE}:
        with contextlib.suppress(OSError):
            os.chmod(made, mode)  # noqa: PTH101  # a Path has no descriptor
