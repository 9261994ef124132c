"""What more than one room asks of a disk."""

import os
from pathlib import Path


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
