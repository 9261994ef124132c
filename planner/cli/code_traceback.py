"""Keeps the traceback of an error of the user's own code that a command met outside a run."""

import os
from pathlib import Path

from planner.base.disk import cache_folder

_NAME = "traceback.txt"


def keep_traceback(text: str) -> Path | None:
    """Write the traceback in place of the last one, readable to this user only. None if that is not possible."""
    file = cache_folder() / _NAME
    fresh = file.with_name(f"{_NAME}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(fresh, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
            stream.write(text)
        fresh.replace(file)
    except OSError:
        return None
    return file
