"""Errors of the tokenizers library, which is written in Rust: a panic is no `Exception`, and prints a backtrace."""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from planner.errors import DataError

_STDERR_LOCK = threading.Lock()


@contextmanager
def without_backtrace() -> Iterator[None]:
    """Hold back what is written to file descriptor 2, and drop it if Rust panics: a panic prints a backtrace there.

    One thread at a time: the descriptor belongs to the whole process.
    """
    with _STDERR_LOCK, tempfile.TemporaryFile() as held:
        kept, is_panic = os.dup(2), False
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException as error:
            is_panic = _is_panic(error)
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            with suppress(OSError):  # nobody reads it
                if not is_panic:
                    os.write(2, held.read())


@contextmanager
def tokenizing(where: str) -> Iterator[None]:
    """Translate the errors of the tokenizers library, which is written in Rust.

    Raises:
        DataError: the tokenizer's file makes it fail.
    """
    try:
        yield
    except BaseException as error:
        require_caught(error)
        raise DataError(f"{where} fails: {' '.join(str(error).split())[:300] or repr(error)}") from error


def require_caught(error: BaseException) -> None:
    """Raise the error again unless a library raised it. Rust's `PanicException` counts; it is not an `Exception`."""
    if not isinstance(error, Exception) and not _is_panic(error):
        raise error


def _is_panic(error: BaseException) -> bool:
    return type(error).__module__ == "pyo3_runtime"
