"""Text files as bytes: the tokens of `data.kind: text` for models over bytes, read from the files on demand."""

import os
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from planner.data.foreign_files import HEAD_BYTES
from planner.data.paths import opened
from planner.errors import DataError

# Text has no NUL, so this byte can separate files.
END_OF_FILE = b"\0"


def head_of(file: Path) -> bytes:
    """The first `HEAD_BYTES` bytes of a file.

    Raises:
        DataError: it cannot be read.
    """
    with opened(file) as stream:
        return bytes(stream.read(HEAD_BYTES))


@dataclass(frozen=True, kw_only=True)
class TextBytes:
    """All files joined, with a NUL after each."""

    name: str
    files: tuple[Path, ...]
    offsets: tuple[int, ...]
    """of each file in the stream, and the stream's end, in bytes"""

    starts: ClassVar[NDArray[np.uint64]] = np.empty(0, np.uint64)

    @classmethod
    def of(cls, name: str, files: list[Path]) -> "TextBytes":
        """The bytes of files, whose sizes are read now."""
        sizes = [file.stat().st_size + len(END_OF_FILE) for file in files]
        return cls(name=name, files=tuple(files), offsets=(0, *accumulate(sizes)))

    @property
    def num_tokens(self) -> int:
        """Number of bytes, those between files included."""
        return self.offsets[-1]

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """The bytes `[start, stop)`. Those behind the end are not there.

        Raises:
            DataError: a file has shrunk or is gone since the data set was opened.
        """
        stop = min(stop, self.num_tokens)
        parts = []
        index = bisect_right(self.offsets, start) - 1
        while start < stop:
            part = self._part(index, start - self.offsets[index], stop - start)
            parts.append(part)
            start += len(part)
            index += 1
        return np.frombuffer(b"".join(parts), dtype=np.uint8)

    def _part(self, index: int, offset: int, num_bytes: int) -> bytes:
        """At most `num_bytes` of one file from `offset` on, including its end mark."""
        file = self.files[index]
        size = self.offsets[index + 1] - self.offsets[index] - len(END_OF_FILE)
        wanted = min(num_bytes, size - offset)
        content = b""
        if wanted > 0:
            with opened(file) as stream:
                content = os.pread(stream.fileno(), wanted, offset)
        if len(content) < wanted:
            raise DataError.of("data.path", f"{file} has changed while the run was reading it. Start the run again")
        return content if wanted == num_bytes else content + END_OF_FILE
