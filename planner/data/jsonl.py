"""One JSON object per line; each non-blank line is a row."""

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

import numpy as np

from planner.data.base import BOUNDARY, Progress, RowCounts, TokenIds, no_progress, token_evidence
from planner.data.json_types import json_type
from planner.data.paths import MAX_LINE_BYTES, content_fingerprint, lines_of, opened, resolve
from planner.errors import DataError

_ROWS_PER_REPORT = 10_000


@dataclass(frozen=True, kw_only=True)
class JsonlDataset:
    """Row i is the text of the i-th non-blank line: boundary, UTF-8 bytes, boundary, cut to `context + 1`.

    Opening reads and checks every line, so that a bad row is found before training and not in its third week.
    In memory stays where each line begins: 12 bytes a row.
    """

    files: tuple[Path, ...]
    file_of_row: "array[int]"
    offset_of_row: "array[int]"
    field: str
    context: int
    fingerprint: str

    notes: ClassVar[tuple[str, ...]] = ()
    """every row is as it stands in the files, or cut to the context as the job says"""

    @classmethod
    def open(cls, path: str, field: str, context: int, progress: Progress = no_progress) -> "JsonlDataset":
        """Index the lines. `progress(done, of)` hears of bytes now and then.

        Raises:
            DataError: a line is not a JSON object with a text under `field`; file and line are named.
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
            raise DataError(f"data.path: {path!r} holds no rows")
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
        """Non-blank lines over all files."""
        return len(self.offset_of_row)

    def tokens(self, row: int) -> TokenIds:
        """Shape `(n,)`, 2 <= n <= context + 1.

        Raises:
            DataError: the line is no longer what it was when the data set was opened.
        """
        file = self.files[self.file_of_row[row]]
        with opened(file) as stream:
            stream.seek(self.offset_of_row[row])
            content = _content(stream.readline(MAX_LINE_BYTES), self.field, f"{file}, row {row}")
        return np.frombuffer(content[: self.context + 1], dtype=np.uint8)

    def evidence(self, row: int) -> RowCounts:
        """Of the row's tokens, read now.

        Raises:
            DataError: the row cannot be read any more.
        """
        return token_evidence(row, self.tokens(row))


def read_rows(files: list[Path], field: str) -> Iterator[tuple[int, int, bytes]]:
    """Every row as `(number of its file, offset of its line, all its tokens)`.

    Raises:
        DataError: a line is not a JSON object with a text under `field`; file and line are named.
    """
    for number, file in enumerate(files):
        offset = 0
        with opened(file) as stream:
            for line_number, line in enumerate(lines_of(file, stream), 1):
                if line.strip():
                    yield number, offset, _content(line, field, f"{file}:{line_number}")
                offset += len(line)


def _content(line: bytes, field: str, where: str) -> bytes:
    """Boundary, UTF-8 bytes, boundary."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error}); write one object per line") from error
    except RecursionError as error:
        raise DataError(f"{where}: nested too deeply; write one flat object per line") from error
    if not isinstance(row, dict) or not isinstance(row.get(field), str):
        raise DataError(
            f"{where}: no text under {field!r} (found {_found(row, field)}); set data.field or mend the line"
        )
    text: str = row[field]
    try:
        return BOUNDARY + text.encode() + BOUNDARY
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: the text is not valid Unicode (a lone surrogate); mend the line") from error


def _found(row: object, field: str) -> str:
    if not isinstance(row, dict):
        return f"{json_type(row)} instead of an object"
    if field in row:
        return f"{json_type(row[field])} there"
    return f"the keys {sorted(row)[:8]}"
