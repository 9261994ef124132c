"""`planner prepare`: text or jsonl -> one token file, written atomically and in constant memory."""

import os
import struct
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from stat import S_IMODE, S_IRUSR, S_IWUSR
from typing import BinaryIO, Literal

from planner.base.disk import disk_full_text, no_room, sync_folder
from planner.data.foreign_files import require_plain_text
from planner.data.jsonl import read_rows
from planner.data.paths import opened, source_stamps
from planner.data.text_files import END_OF_FILE, head_of
from planner.data.tokens import HEADER_BYTES, Header, blocks_digest
from planner.errors import DataError, RunError, UserError
from planner.job import JsonlData, TextData

_CHUNK_BYTES = 2**22


def prepare(
    source: TextData | JsonlData,
    output: Path,
    *,
    replace: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Header:
    """Write the tokens of `source` to the file `output`, and return its header.

    Args:
        source: the data to read.
        output: the token file.
        replace: whether to replace a file that exists.
        progress: called with (bytes done, bytes in all) of the source.

    Raises:
        UserError: `output` exists, or no file can be there.
        DataError: the source cannot be read.
        RunError: `output` cannot be written. No partial file remains.
    """
    stamps = source_stamps(source.path)
    files, sizes = [Path(name) for name, _, _ in stamps], [size for _, size, _ in stamps]
    _check_output(output, replace=replace)
    if _is_source(output, Path(source.path), files):
        raise UserError(f"{output} is in {source.path}, where it would count as source. Choose another place")
    if isinstance(source, TextData):
        for file in files:
            require_plain_text(file, head_of(file))
    # Beside the output, since /tmp may be small, or in memory.
    with _all_or_nothing(output, files, sum(sizes)) as stream, tempfile.TemporaryFile(dir=output.parent) as starts:
        writer = _Writer(stream, starts)
        is_rows = isinstance(source, JsonlData)
        parts = _rows(files, sizes, source.field) if isinstance(source, JsonlData) else _text(files, sizes)
        progress(shown := 0, sum(sizes))
        for place, content in parts:
            writer.add(content, is_row=is_rows)
            if place - shown >= _CHUNK_BYTES:
                progress(place, sum(sizes))
                shown = place
        if not is_rows and writer.num_tokens - len(files) < 2:
            raise DataError.of("data.path", f"{source.path!r} holds no text. A sample needs at least two bytes")
        if is_rows and not writer.num_rows:
            raise DataError.of("data.path", f"{source.path!r} holds no rows")
        return writer.finish("rows" if is_rows else "stream")


def _text(files: list[Path], sizes: list[int]) -> Iterator[tuple[int, bytes]]:
    """Pieces of the stream that `TextDataset` reads, each as `(bytes of the source read so far, piece)`."""
    done = 0
    for file, size in zip(files, sizes, strict=True):
        with opened(file) as stream:
            left = size
            while left:
                content = stream.read(min(left, _CHUNK_BYTES))
                if not content:
                    raise DataError.of("data.path", f"{file} has changed while it was read. Prepare it again")
                left -= len(content)
                done += len(content)
                yield done, content
        yield done, END_OF_FILE


def _rows(files: list[Path], sizes: list[int], field: str) -> Iterator[tuple[int, bytes]]:
    """The uncut rows of `JsonlDataset`, each as `(bytes of the source before it, row)`."""
    before = (0, *accumulate(sizes))
    for number, offset, content in read_rows(files, field):
        yield before[number] + offset, content


class _Writer:
    """Writes tokens, then the header, which is known only at the end. Row starts are kept in a file, not in memory."""

    def __init__(self, stream: BinaryIO, starts: BinaryIO) -> None:
        self._stream, self._starts, self._digest = stream, starts, sha256()
        self.num_tokens = self.num_rows = 0
        stream.write(bytes(HEADER_BYTES))

    def add(self, content: bytes, *, is_row: bool) -> None:
        """Append tokens. If `is_row`, they are one whole row."""
        if is_row:
            self._starts.write(struct.pack("<Q", self.num_tokens))
            self.num_rows += 1
        self._write(content)
        self.num_tokens += len(content)

    def finish(self, kind: Literal["stream", "rows"]) -> Header:
        """Append the table of rows, and write the header at the beginning."""
        self._write(bytes(-self.num_tokens % 8))
        if kind == "rows":
            self._starts.write(struct.pack("<Q", self.num_tokens))
            self._starts.seek(0)
            while content := self._starts.read(_CHUNK_BYTES):
                self._write(content)
        self._stream.flush()
        header = Header(
            kind=kind,
            dtype="uint8",
            num_tokens=self.num_tokens,
            num_rows=self.num_rows,
            sha256=self._digest.hexdigest(),
            blocks_sha256=blocks_digest(self._stream, self._stream.tell()),
        )
        self._stream.seek(0)
        self._stream.write(header.encode())
        return header

    def _write(self, content: bytes) -> None:
        self._stream.write(content)
        self._digest.update(content)


def _is_source(output: Path, source: Path, files: list[Path]) -> bool:
    if source.is_dir():
        return output.resolve().is_relative_to(source.resolve())
    return output.exists() and any(output.samefile(file) for file in files)


def _check_output(output: Path, *, replace: bool) -> None:
    """Check the place of the output before hours of work.

    Raises:
        UserError: a file exists and may not be replaced, or no file can be there.
    """
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent}. Make it first")
    try:
        output.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"no file can be at {str(output)[:200]!r}: {error.strerror}") from error
    if not output.is_file():
        raise UserError(f"{output} is not a regular file. Write the name of a new one")
    if not replace:
        raise UserError(f"{output} exists already. Choose another name, or replace it with --force")


@contextmanager
def _all_or_nothing(output: Path, sources: list[Path], about_bytes: int) -> Iterator[BinaryIO]:
    """A temporary file, which is renamed to `output` once it is complete and synced.

    Its permissions are at most those of each source: users who may not read a source may not read it.

    Raises:
        RunError: it cannot be written.
    """
    part = output.with_name(f".planner-prepare-{uuid.uuid4().hex}")
    try:
        with part.open("x+b", buffering=_CHUNK_BYTES) as stream:
            mode = S_IMODE(os.fstat(stream.fileno()).st_mode)
            for source in sources:
                mode &= source.stat().st_mode
            os.fchmod(stream.fileno(), mode | S_IRUSR | S_IWUSR)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(output)
        sync_folder(output.parent)
    except OSError as error:
        part.unlink(missing_ok=True)  # before free space is measured
        full = no_room(error)
        why = disk_full_text(full, "it", about_bytes, output.parent) if full else error.strerror
        raise RunError(f"cannot write {output}: {why}. No partial file remains") from error
    finally:
        part.unlink(missing_ok=True)
