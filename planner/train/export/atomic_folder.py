"""A folder that is filled before it has its name, so that what has the name is whole."""

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from planner.base.permissions import make_folder
from planner.errors import UserError


@contextmanager
def unfinished_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target` for what is not whole yet. What killed exports to the same place have left, goes.

    Raises:
        UserError: it cannot be made.
    """
    for left in target.parent.glob(f".{escape(target.name)}.*.half"):
        _remove_if_dead(left)
    half = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.half"
    try:
        make_folder(half, half)
    except OSError as error:
        raise UserError(f"{target}: cannot be made there: {error.strerror}") from error
    try:
        with _locked(half):
            yield half
    finally:
        shutil.rmtree(half, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the folder's lock, which ends with the process; false where another one has it, or nobody can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _remove_if_dead(half: Path) -> None:
    with suppress(OSError), _locked(half) as is_dead:  # what is in the way of nothing may also stay
        if is_dead:
            shutil.rmtree(half, ignore_errors=True)
