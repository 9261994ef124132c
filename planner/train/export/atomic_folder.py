"""A folder that is filled under a temporary name, so that the folder with the final name is always complete."""

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
    """A temporary folder beside `target`, removed at the end. Also removes those that killed exports to `target` left.

    Raises:
        UserError: the folder cannot be made.
    """
    for left in target.parent.glob(f".{escape(target.name)}.*.half"):
        _remove_if_dead(left)
    half = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.half"
    try:
        make_folder(half, half)
    except OSError as error:
        raise UserError(f"{target}: the folder cannot be made there: {error.strerror}") from error
    try:
        with _locked(half):
            yield half
    finally:
        # After a rename, nothing is left here.
        shutil.rmtree(half, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Try to hold the folder's lock, which ends with the process. False if another process has it, or locks fail."""
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
    with suppress(OSError), _locked(half) as is_dead:  # a leftover that cannot be removed does no harm
        if is_dead:
            shutil.rmtree(half, ignore_errors=True)
