"""The data set of `data.kind: text`: files as one stream of bytes, cut into rows of `context` tokens."""

import os
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from planner.data.base import RowContribution, TokenIds, token_row_counts
from planner.data.foreign_files import HEAD_BYTES, text_notes
from planner.data.paths import content_fingerprint, opened, resolve
from planner.errors import DataError


def head_of(file: Path) -> bytes:
    """The first `HEAD_BYTES` bytes of a file.

    Raises:
        DataError: it cannot be read.
    """
    with opened(file) as stream:
        return bytes(stream.read(HEAD_BYTES))


# Text has no NUL, so this byte can separate files.
END_OF_FILE = b"\0"


@dataclass(frozen=True, kw_only=True)
class TextDataset:
    """Row i is the bytes `[i * context, (i + 1) * context + 1)` of all files joined. The last row may be shorter.

    Neighbouring rows share one byte: the last label of one is the first input of the next. So every byte of the
    corpus but the first is predicted exactly once per epoch. Rows are read from disk on demand.
    """

    files: tuple[Path, ...]
    starts: tuple[int, ...]
    """byte offset of each file in the stream, and the stream's end"""
    context: int
    fingerprint: str
    notes: tuple[str, ...] = ()
    """about files that are no text. Rows are used as they are"""

    @classmethod
    def open(cls, path: str, context: int) -> "TextDataset":
        """Find the files, and read their sizes and content once.

        Raises:
            DataError: there is no file, or the files have fewer than two bytes in total.
        """
        root, files = resolve(path)
        notes = text_notes([(file, head_of(file)) for file in files])
        sizes = [file.stat().st_size + len(END_OF_FILE) for file in files]
        starts = (0, *accumulate(sizes))
        if starts[-1] - len(files) < 2:
            raise DataError.of("data.path", f"{path!r} holds no text. A sample needs at least two bytes")
        return cls(
            files=tuple(files),
            starts=starts,
            context=context,
            fingerprint=content_fingerprint(root, files, "text", context),
            notes=notes,
        )

    @property
    def num_rows(self) -> int:
        """Number of rows, including a shorter last one: `ceil((bytes - 1) / context)`."""
        return -(-(self.starts[-1] - 1) // self.context)

    def tokens(self, row: int) -> TokenIds:
        """The row's token ids, shape `(context + 1,)`. The last row may be shorter.

        Raises:
            DataError: a file has shrunk or is gone since the data set was opened.
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

    def evidence(self, row: int) -> RowContribution:
        """The counts of the row's tokens, read now.

        Raises:
            DataError: the row cannot be read any more.
        """
        return token_row_counts(row, self.tokens(row))

    def _read(self, index: int, offset: int, num_bytes: int) -> bytes:
        """At most `num_bytes` of one file from `offset` on, including its end mark."""
        file = self.files[index]
        size = self.starts[index + 1] - self.starts[index] - len(END_OF_FILE)
        wanted = min(num_bytes, size - offset)
        content = b""
        if wanted > 0:
            with opened(file) as stream:
                content = os.pread(stream.fileno(), wanted, offset)
        if len(content) < wanted:
            raise DataError.of("data.path", f"{file} has changed while the run was reading it. Start the run again")
        return content if wanted == num_bytes else content + END_OF_FILE
