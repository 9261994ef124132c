"""Errors of the tokenizers library, which is written in Rust. A panic is not an `Exception`, and prints a backtrace."""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from planner.errors import DataError

_STDERR_LOCK = threading.Lock()


@contextmanager
def without_backtrace() -> Iterator[None]:
    """Buffer what is written to file descriptor 2, and drop it if Rust panics, since a panic prints a backtrace there.

    One thread at a time, because the descriptor belongs to the whole process.
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
            with suppress(OSError):  # stderr may be closed
                if not is_panic:
                    os.write(2, held.read())


@contextmanager
def tokenizing(where: str) -> Iterator[None]:
    """Translate errors of the tokenizers library. `where` names the tokenizer.

    Raises:
        DataError: the library fails.
    """
    try:
        yield
    except BaseException as error:
        require_caught(error)
        raise DataError(f"{where} fails: {' '.join(str(error).split())[:300] or repr(error)}") from error


def require_caught(error: BaseException) -> None:
    """Raise the error again unless it is an `Exception` or Rust's `PanicException`, which is not an `Exception`."""
    if not isinstance(error, Exception) and not _is_panic(error):
        raise error


def _is_panic(error: BaseException) -> bool:
    return type(error).__module__ == "pyo3_runtime"
