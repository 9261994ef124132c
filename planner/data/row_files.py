"""The forms of files with rows, and the reader of each file.

planner recognises its own forms by the first bytes of a file, whatever its name. An installed package may read files
with a certain name ending: an entry point of the group `planner.row_files` has that ending as its name (`csv`) and
names a `planner.data.row.Reader`.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from planner.base.json_text import NoJson, json_value
from planner.base.plugins import Plugin, installed
from planner.data.foreign_files import HEAD_BYTES, require_rows
from planner.data.json_array import array_values
from planner.data.paths import lines_of, opened
from planner.data.row import RawRow, Reader, unreadable
from planner.data.tables import parquet_rows
from planner.errors import DataError

_GROUP = "planner.row_files"
_OUR_ENDINGS = {"json", "jsonl", "parquet"}


def reader_of(file: Path) -> Reader:
    """The reader of a file: that of an installed package for its name ending, else by the first bytes of the file.

    Raises:
        DataError: the file cannot be read, or has a format that planner does not read.
        PlannerError: the package cannot be used.
    """
    if foreign := _foreign_reader(file):
        return partial(_guarded, foreign)
    with opened(file) as stream:
        head = stream.read(HEAD_BYTES)
    reader = next(reader for begins_so, reader in _BY_BEGINNING if begins_so(head))
    if reader is line_rows:
        require_rows(file, head, f"planner reads {_readable()}")
    return reader


def package_code_digests(files: Iterable[Path]) -> tuple[str, ...]:
    """SHA-256 of the code of each package that reads some of these files, since other code may find other rows.

    Raises:
        PlannerError: a package cannot be used.
    """
    readers = {reader for file in files if (reader := _foreign_reader(file))}
    return tuple(sorted(map(code_digest, readers)))


def code_digest(code: Callable[..., object]) -> str:
    """SHA-256 of the file that defines a function or a class."""
    return sha256(Path(inspect.getfile(code)).read_bytes()).hexdigest()


@cache
def _packages() -> Mapping[str, Plugin]:
    """Name ending -> the package that reads such files. Cached: a lookup takes ms, and there may be many files."""
    return installed(_GROUP)


def _readable() -> str:
    """The forms of files that can be read here, those of packages included, as text."""
    forms = ["JSON lines", "JSON arrays", "parquet files", *(f".{ending} files" for ending in _packages())]
    return f"{', '.join(forms)} and folders of `save_to_disk`"


def _foreign_reader(file: Path) -> Reader | None:
    ending = file.suffix.removeprefix(".").lower()
    plugin = _packages().get(ending)
    if plugin is None:
        return None
    if ending in _OUR_ENDINGS:
        raise plugin.error("planner reads such files itself, and the package might find other rows")
    reader = plugin.load()
    if not inspect.isfunction(reader):
        raise plugin.error("it names no function")
    found: Reader = reader
    return found


def _guarded(reader: Reader, file: Path) -> Iterator[RawRow]:
    """The rows that a package's reader yields, as `RawRow` or plain tuples.

    Raises:
        DataError: the reader raised any error, or yields something else.
    """
    try:
        for found in reader(file):
            yield _checked(RawRow(*found))
    except DataError:
        raise
    except (Exception, SystemExit) as error:  # the package's code may raise anything, and may exit
        raise unreadable(file, error) from error


def _checked(found: RawRow) -> RawRow:
    """`found`, after a check of its types.

    Raises:
        TypeError: a field has a wrong type.
    """
    where, _, read, flaw = found
    if not (isinstance(where, str) and isinstance(read, int) and isinstance(flaw, str)):
        raise TypeError(f"its reader yields {where!r}, {read!r} and {flaw!r} as where (str), read (int) and flaw (str)")
    return found


# -- planner's own forms


def line_rows(file: Path) -> Iterator[RawRow]:
    """The rows of a file of JSON lines: each non-blank line is a row.

    Raises:
        DataError: the file cannot be read, or has a line that is too long.
    """
    start = 0
    with opened(file) as stream:
        for number, line in enumerate(lines_of(file, stream), 1):
            if line.strip():
                value, flaw = parsed(line)
                yield RawRow(f"{file}:{number}", value, start, flaw)
            start += len(line)


def parsed(line: bytes) -> tuple[Any, str]:
    """The value of a line, or why it has none."""
    try:
        return json_value(line), ""
    except NoJson as error:
        return None, str(error)


def array_rows(file: Path) -> Iterator[RawRow]:
    """The rows of a JSON array: each of its values is a row.

    Raises:
        DataError: the file cannot be read, or is not a JSON array.
    """
    try:
        with opened(file) as stream:
            for number, value in enumerate(array_values(stream)):
                yield RawRow(f"{file}, row {number}", value, stream.tell())
    except ValueError as error:
        raise DataError.of(
            "data.path",
            f"{file} begins like a JSON array but is not one ({error}). Correct it, or write one object per line",
        ) from error
    except RecursionError as error:
        raise DataError.of("data.path", f"{file} is nested too deeply") from error


# The first match wins. Any file may be one of JSON lines.
_BY_BEGINNING: tuple[tuple[Callable[[bytes], bool], Reader], ...] = (
    (lambda head: head.startswith(b"PAR1"), parquet_rows),
    (lambda head: head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["), array_rows),
    (lambda _head: True, line_rows),
)
