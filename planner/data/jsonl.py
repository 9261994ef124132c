"""Texts of JSON lines: one JSON object per line, each non-blank line is a row."""

from collections.abc import Iterator
from pathlib import Path

from planner.base.json_text import NoJson, json_type, json_value
from planner.data.base import BOUNDARY
from planner.data.foreign_files import HEAD_BYTES, require_rows
from planner.data.paths import lines_of, opened
from planner.errors import DataError


class NoTextField(DataError):
    """A row has no text under the key that `data.field` names. Its `problem` is without the advice."""

    @classmethod
    def at(cls, problem: str) -> "NoTextField":
        """The error, with the advice for a job. `planner prepare` has an option instead."""
        error = cls(f"{problem}. Set data.field or correct the line")
        error.problem = problem
        return error


def read_rows(files: list[Path], field: str) -> Iterator[tuple[int, int, bytes]]:
    """Every row as `(number of its file, offset of its line, all its tokens)`.

    Raises:
        DataError: a line is not a JSON object with a text under `field`, or a file has another format. The message
            names file and line.
    """
    for number, file in enumerate(files):
        offset = 0
        with opened(file) as stream:
            require_rows(file, stream.read(HEAD_BYTES), "the kind jsonl reads JSON lines")
            stream.seek(0)
            for line_number, line in enumerate(lines_of(file, stream), 1):
                if line.strip():
                    yield number, offset, _content(line, field, f"{file}:{line_number}")
                offset += len(line)


def _content(line: bytes, field: str, where: str) -> bytes:
    """All tokens of a line's text: boundary, UTF-8 bytes, boundary."""
    try:
        row = json_value(line)
    except NoJson as error:
        raise DataError(f"{where}: {error}. Write one object per line") from error
    if not isinstance(row, dict) or not isinstance(row.get(field), str):
        raise NoTextField.at(f"{where}: no text under {field!r} (found {_found(row, field)})")
    text: str = row[field]
    try:
        return BOUNDARY + text.encode() + BOUNDARY
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: the text is not valid Unicode (a lone surrogate). Correct the line") from error


def _found(row: object, field: str) -> str:
    if not isinstance(row, dict):
        return f"{json_type(row)} instead of an object"
    if field in row:
        return f"{json_type(row[field])} there"
    return f"the keys {sorted(row)[:8]}"
