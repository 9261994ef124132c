"""Writes a new file to a path that the user typed. `init`, `convert`, `report` and `simulate` use it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planner.errors import UserError


def write_new_file(file: Path, text: str | bytes, *, force: bool) -> None:
    """Write the text as UTF-8, or the bytes as they are.

    Args:
        file: the path of the new file. Its folder must exist.
        text: what the file contains.
        force: whether to replace an existing file.

    Raises:
        UserError: the file exists, its folder does not, or the path cannot be written.
    """
    require_free(file, force=force)
    with _said_in_a_sentence(file):
        file.write_bytes(text.encode() if isinstance(text, str) else text)


def require_free(file: Path, *, force: bool) -> None:
    """Check before long work that the text can be written there.

    Raises:
        UserError: the file exists, or its folder does not.
    """
    with _said_in_a_sentence(file):
        if file.is_dir():
            raise UserError(f"{file}: found a folder. Write the path of a file in it")
        if not file.parent.is_dir():
            raise UserError(f"{file}: there is no folder {file.parent}. Make it first, or write another path")
        if file.exists() and not force:
            raise UserError(f"{file}: the file exists. Write another path, or replace it with --force")


@contextmanager
def _said_in_a_sentence(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{file}: cannot write there ({error.strerror}). Write another path") from error
    except ValueError as error:  # a NUL, or a name that the file system cannot encode
        raise UserError(f"{file}: cannot write there ({error}). Write another path") from error
