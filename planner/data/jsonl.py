"""The data set of `data.kind: jsonl`: one JSON object per line, each non-blank line is a row."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

import numpy as np

from planner.base.json_text import NoJson, json_type, json_value
from planner.data.base import BOUNDARY, Progress, RowContribution, TokenIds, no_progress, token_row_counts
from planner.data.foreign_files import HEAD_BYTES, require_rows
from planner.data.paths import MAX_LINE_BYTES, content_fingerprint, lines_of, opened, resolve
from planner.errors import DataError

_ROWS_PER_REPORT = 10_000


class NoTextField(DataError):
    """A row has no text under the key that `data.field` names. Its `problem` is without the advice."""

    @classmethod
    def at(cls, problem: str) -> "NoTextField":
        """The error, with the advice for a job. `planner prepare` has an option instead."""
        error = cls(f"{problem}. Set data.field or correct the line")
        error.problem = problem
        return error


@dataclass(frozen=True, kw_only=True)
class JsonlDataset:
    """Row i is the text of the i-th non-blank line: boundary, UTF-8 bytes, boundary, cut to `context + 1`.

    Opening reads and checks every line, so that a bad row is found before training and not weeks later. The offset of
    each line stays in memory: 12 bytes per row.
    """

    files: tuple[Path, ...]
    file_of_row: "array[int]"
    offset_of_row: "array[int]"
    field: str
    context: int
    fingerprint: str

    notes: ClassVar[tuple[str, ...]] = ()
    """no notes: rows are used as they are, or cut to the context"""

    @classmethod
    def open(cls, path: str, field: str, context: int, progress: Progress = no_progress) -> "JsonlDataset":
        """Index the lines. `progress(done, of)` counts bytes.

        Raises:
            DataError: a line is not a JSON object with a text under `field`. The message names file and line.
        """
        root, files = resolve(path)
        file_of_row, offset_of_row = array("i"), array("q")
        starts = (0, *accumulate(file.stat().st_size for file in files))
        for number, offset, _ in read_rows(files, field):
            file_of_row.append(number)
            offset_of_row.append(offset)
            if len(offset_of_row) % _ROWS_PER_REPORT == 0:
                progress(starts[number] + offset, starts[-1])
        if not offset_of_row:
            raise DataError.of("data.path", f"{path!r} holds no rows")
        return cls(
            files=tuple(files),
            file_of_row=file_of_row,
            offset_of_row=offset_of_row,
            field=field,
            context=context,
            fingerprint=content_fingerprint(root, files, "jsonl", field, context),
        )

    @property
    def num_rows(self) -> int:
        """Number of non-blank lines in all files."""
        return len(self.offset_of_row)

    def tokens(self, row: int) -> TokenIds:
        """The row's token ids, shape `(n,)`, 2 <= n <= context + 1.

        Raises:
            DataError: the line has changed since the data set was opened.
        """
        file = self.files[self.file_of_row[row]]
        with opened(file) as stream:
            stream.seek(self.offset_of_row[row])
            content = _content(stream.readline(MAX_LINE_BYTES), self.field, f"{file}, row {row}")
        return np.frombuffer(content[: self.context + 1], dtype=np.uint8)

    def evidence(self, row: int) -> RowContribution:
        """The counts of the row's tokens, read now.

        Raises:
            DataError: the row cannot be read any more.
        """
        return token_row_counts(row, self.tokens(row))


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
