"""Folders and files for their owner alone, or as open as the folder of a run that somebody has made for others, too.

The umask is not asked: with the usual one, everybody on the machine could read a run's weights and its data's names.
"""

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

_FOLDER = 0o700
_FILE = 0o600
_FOLDER_BITS = 0o2777
"""of a mode: with them goes the group that files below a folder get, where a team shares one"""


def make_folder(folder: Path, root: Path) -> None:
    """Make a folder and all that is missing above it; one that is there stays as it is.

    Within `root` a new one is as open as that; `root` itself and what lies above it are made private.

    Raises:
        OSError: it cannot be made.
    """
    missing: list[Path] = []
    for place in (folder, *folder.parents):
        if place.is_dir():
            break
        missing.append(place)
    for place in reversed(missing):
        try:
            place.mkdir(_FOLDER)
        except FileExistsError:  # another process was as quick, or something else is in the way
            if not place.is_dir():
                raise
            continue
        if root in place.parents:
            _open_up(place, _mode_of(root))


def opener_within(root: Path) -> Callable[[str, int], int]:
    """For `open(..., opener=)`: a new file is as open as `root`; one that is there is not written to through a link.

    Where there is no `root`, a file is private.
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
    """Whether a path stays below a folder, symbolic links followed."""
    real = os.path.realpath(root)
    return os.path.commonpath([os.path.realpath(place), real]) == real


def _mode_of(root: Path) -> int:
    try:
        return stat.S_IMODE(root.stat().st_mode) & _FOLDER_BITS
    except FileNotFoundError:
        return _FOLDER


def _open_up(made: Path | int, mode: int) -> None:
    # Some mounts know no modes. What was made is private by then, so nothing is lost but the sharing.
    if mode not in {_FOLDER, _FILE}:
        with contextlib.suppress(OSError):
            os.chmod(made, mode)  # noqa: PTH101  # a Path has no descriptor
