"""Text files as one stream of bytes, cut into rows of `context` tokens."""

import os
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

import numpy as np

from planner.data.base import RowCounts, TokenIds, token_evidence
from planner.data.paths import content_fingerprint, opened, resolve
from planner.errors import DataError

# Source text holds no NUL, so this byte can stand between files.
END_OF_FILE = b"\0"


@dataclass(frozen=True, kw_only=True)
class TextDataset:
    """Row i is the bytes `[i * context, (i + 1) * context + 1)` of all files joined; the last row may be shorter.

    Neighbouring rows share one byte (the label of one is the first input of the next), so every byte of the
    corpus but the first is predicted exactly once in an epoch. Rows are read from disk when asked for.
    """

    files: tuple[Path, ...]
    starts: tuple[int, ...]
    """where each file begins in the stream, in bytes, and the stream's end: one more than files"""
    context: int
    fingerprint: str

    notes: ClassVar[tuple[str, ...]] = ()
    """every row is as it stands in the files"""

    @classmethod
    def open(cls, path: str, context: int) -> "TextDataset":
        """Find the files and read their sizes and content once.

        Raises:
            DataError: there is no file, or fewer than two bytes in all.
        """
        root, files = resolve(path)
        sizes = [file.stat().st_size + len(END_OF_FILE) for file in files]
        starts = (0, *accumulate(sizes))
        if starts[-1] - len(files) < 2:
            raise DataError(f"data.path: {path!r} holds no text; a sample needs at least two bytes")
        return cls(
            files=tuple(files),
            starts=starts,
            context=context,
            fingerprint=content_fingerprint(root, files, "text", context),
        )

    @property
    def num_rows(self) -> int:
        """Rows, the last of them possibly shorter: `ceil((bytes - 1) / context)`."""
        return -(-(self.starts[-1] - 1) // self.context)

    def tokens(self, row: int) -> TokenIds:
        """Shape `(context + 1,)`, shorter in the last row.

        Raises:
            DataError: a file has shrunk or gone since the data set was opened.
        """
        start = row * self.context
        stop = min(start + self.context + 1, self.starts[-1])
        parts = []
        index = bisect_right(self.starts, start) - 1
        while start < stop:
            part = self._read(index, start - self.starts[index], stop - start)
            parts.append(part)
            start += len(part)
            index += 1
        return np.frombuffer(b"".join(parts), dtype=np.uint8)

    def evidence(self, row: int) -> RowCounts:
        """Of the row's tokens, read now.

        Raises:
            DataError: the row cannot be read any more.
        """
        return token_evidence(row, self.tokens(row))

    def _read(self, index: int, offset: int, num_bytes: int) -> bytes:
        """At most `num_bytes` of one file from `offset` on, its end mark included."""
        file = self.files[index]
        size = self.starts[index + 1] - self.starts[index] - len(END_OF_FILE)
        wanted = min(num_bytes, size - offset)
        content = b""
        if wanted > 0:
            with opened(file) as stream:
                content = os.pread(stream.fileno(), wanted, offset)
        if len(content) < wanted:
            raise DataError(f"data.path: {file} has changed while the run was reading it; start the run again")
        return content if wanted == num_bytes else content + END_OF_FILE
