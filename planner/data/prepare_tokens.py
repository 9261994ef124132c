"""Text or jsonl -> one token file, written atomically and in bounded memory: by `planner prepare`, or to the cache."""

import codecs
import os
import struct
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from stat import S_IMODE, S_IRUSR, S_IWUSR
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from planner.base.disk import disk_full_text, no_room, sync_folder
from planner.data.base import BOUNDARY, Progress, no_progress
from planner.data.document_tokens import DocumentTokenizer, Part
from planner.data.foreign_files import require_plain_text
from planner.data.hf_tokenizer import HfTokenizer
from planner.data.jsonl import read_rows
from planner.data.paths import opened, source_stamps
from planner.data.text_files import END_OF_FILE, head_of
from planner.data.tokens import BYTES, HEADER_BYTES, Header, blocks_digest, dtype_of
from planner.errors import DataError, RunError, UserError
from planner.job import HfModel, JsonlData, TextData

_CHUNK_BYTES = 2**22


def prepare(
    source: TextData | JsonlData,
    output: Path,
    *,
    model: HfModel | None = None,
    replace: bool = False,
    progress: Progress = no_progress,
) -> Header:
    """Write the tokens of `source` to the file `output`, and return its header.

    Args:
        source: the data to read.
        output: the token file.
        model: the model whose tokenizer makes the tokens. Each file of text or row of jsonl is a document. None: bytes.
        replace: whether to replace a file that exists.
        progress: called with (bytes done, bytes in all) of the source.

    Raises:
        UserError: `output` exists, or no file can be there.
        DataError: the source cannot be read, or the tokenizer cannot be used.
        RunError: `output` cannot be written. No partial file remains.
    """
    files = [Path(name) for name, _, _ in source_stamps(source.path)]
    _check_output(output, replace=replace)
    if _is_source(output, Path(source.path), files):
        raise UserError(f"{output} is in {source.path}, where it would count as source. Choose another place")
    return write_file(source, output, HfTokenizer.load(model) if model else None, progress)


def write_file(
    source: TextData | JsonlData, output: Path, tokenizer: HfTokenizer | None, progress: Progress = no_progress
) -> Header:
    """Write the tokens of `source` to the file `output`, all or nothing. See `write`.

    Raises:
        DataError: the source cannot be read.
        RunError: `output` cannot be written. No partial file remains.
    """
    stamps = source_stamps(source.path)
    files, num_bytes = [Path(name) for name, _, _ in stamps], sum(size for _, size, _ in stamps)
    # Beside the output, since /tmp may be small, or in memory.
    with _all_or_nothing(output, files, num_bytes) as stream, tempfile.TemporaryFile(dir=output.parent) as starts:
        return write(source, stream, starts, tokenizer, progress)


def write(
    source: TextData | JsonlData,
    stream: BinaryIO,
    starts: BinaryIO,
    tokenizer: HfTokenizer | None,
    progress: Progress = no_progress,
) -> Header:
    """Write a token file in bounded memory, and return its header.

    Args:
        source: the data to read.
        stream: the token file, empty.
        starts: an empty file for the table of rows until it is complete.
        tokenizer: it makes the tokens of documents. None: bytes.
        progress: called with (bytes done, bytes in all) of the source.

    Raises:
        DataError: the source cannot be read.
    """
    stamps = source_stamps(source.path)
    files, sizes = [Path(name) for name, _, _ in stamps], [size for _, size, _ in stamps]
    if isinstance(source, TextData):
        for file in files:
            require_plain_text(file, head_of(file))
    documents = DocumentTokenizer(tokenizer) if tokenizer else None
    writer = _Writer(stream, starts)
    make = partial(_documents, documents=documents) if documents else _bytes
    progress(shown := 0, sum(sizes))
    for place in make(writer, source, files, sizes):
        # First soon, then at twice as much each time.
        if place - shown >= min(_CHUNK_BYTES, max(shown, 1)):
            progress(place, sum(sizes))
            shown = place
    if isinstance(source, TextData) and writer.num_tokens - (0 if documents else len(files)) < 2:
        least = "one token" if documents else "two bytes"
        raise DataError.of("data.path", f"{source.path!r} holds no text. A sample needs at least {least}")
    if writer.kind != "stream" and not writer.num_rows:
        raise DataError.of("data.path", f"{source.path!r} holds no rows")
    return writer.finish(num_empty=documents.num_empty if documents else 0)


def _bytes(writer: "_Writer", source: TextData | JsonlData, files: list[Path], sizes: list[int]) -> Iterator[int]:
    """Write the bytes of the source. After each part, yield how many of them were read."""
    if isinstance(source, TextData):
        for place, content in _text(files, sizes):
            writer.add_bytes([content])
            yield place
        return
    writer.kind = "rows"
    rows: list[bytes] = []
    num_bytes = 0
    before = (0, *accumulate(sizes))
    for number, offset, content in read_rows(files, source.field):
        rows.append(content)
        num_bytes += len(content)
        if num_bytes >= _CHUNK_BYTES:
            writer.add_bytes(rows)
            yield before[number] + offset
            rows, num_bytes = [], 0
    writer.add_bytes(rows)


def _documents(
    writer: "_Writer",
    source: TextData | JsonlData,
    files: list[Path],
    sizes: list[int],
    *,
    documents: DocumentTokenizer,
) -> Iterator[int]:
    """Write the ids of the source's documents. After each part, yield how many bytes were read."""
    writer.kind, writer.tokenizer = "documents", documents.tokenizer.ids_digest
    writer.vocabulary = documents.tokenizer.num_ids
    writer.dtype = dtype_of(writer.vocabulary)
    parts = _row_texts(files, sizes, source.field) if isinstance(source, JsonlData) else _texts(files, sizes)
    for found in documents.ids(parts):
        if found.begins:
            writer.begin_row()
        writer.add(found.ids)
        yield found.read


def _texts(files: list[Path], sizes: list[int]) -> Iterator[Part]:
    """The text of each file, in parts."""
    before = (0, *accumulate(sizes))
    for number, (file, size) in enumerate(zip(files, sizes, strict=True)):
        decoder = codecs.getincrementaldecoder("utf-8")()
        for read, content in _content(file, size):
            try:
                text = decoder.decode(content, final=read == size)
            except UnicodeDecodeError as error:
                # The decoder keeps up to three bytes of a character whose end is in the next part.
                at = read - len(error.object) + error.start
                raise DataError.of(
                    "data.path",
                    f"{file} is not UTF-8 at byte {at}, and a tokenizer reads characters. Convert it: "
                    "iconv -f ENCODING -t UTF-8",
                ) from error
            yield Part(text=text, where=str(file), read=before[number] + read, is_last=read == size)
        if not size:
            yield Part(text="", where=str(file), read=before[number], is_last=True)


def _row_texts(files: list[Path], sizes: list[int], field: str) -> Iterator[Part]:
    """The text of each row."""
    before = (0, *accumulate(sizes))
    for number, offset, content in read_rows(files, field):
        text = content[len(BOUNDARY) : -len(BOUNDARY)].decode()
        where = f"{files[number]}, the row at byte {offset}"
        yield Part(text=text, where=where, read=before[number] + offset, is_last=True)


def _content(file: Path, size: int) -> Iterator[tuple[int, bytes]]:
    """The first `size` bytes of a file in chunks, each with how many bytes were read.

    Raises:
        DataError: it cannot be read, or has fewer bytes.
    """
    left = size
    with opened(file) as stream:
        while left:
            content = stream.read(min(left, _CHUNK_BYTES))
            if not content:
                raise DataError.of("data.path", f"{file} has changed while it was read. Prepare it again")
            left -= len(content)
            yield size - left, content


def _text(files: list[Path], sizes: list[int]) -> Iterator[tuple[int, bytes]]:
    """Pieces of the stream that `TextBytes` reads, each as `(bytes of the source read so far, piece)`."""
    before = (0, *accumulate(sizes))
    for number, (file, size) in enumerate(zip(files, sizes, strict=True)):
        for read, content in _content(file, size):
            yield before[number] + read, content
        yield before[number + 1], END_OF_FILE


class _Writer:
    """Writes tokens, then the header, which is known only at the end. Row starts are kept in a file, not in memory."""

    def __init__(self, stream: BinaryIO, starts: BinaryIO) -> None:
        self._stream, self._starts, self._digest = stream, starts, sha256()
        self.kind: Literal["stream", "rows", "documents"] = "stream"
        self.dtype, self.tokenizer, self.vocabulary = "uint8", BYTES, 256
        self.num_tokens = self.num_rows = 0
        stream.write(bytes(HEADER_BYTES))

    def begin_row(self) -> None:
        """Begin a row or a document with the next tokens."""
        self._starts.write(struct.pack("<Q", self.num_tokens))
        self.num_rows += 1

    def add(self, ids: NDArray[Any]) -> None:
        """Append tokens, shape `(n,)`."""
        self._write(ids.astype(np.dtype(self.dtype).newbyteorder("<"), copy=False).tobytes())
        self.num_tokens += len(ids)

    def add_bytes(self, contents: Sequence[bytes]) -> None:
        """Append bytes, each of which is a row unless the file is a stream."""
        if self.kind != "stream":
            starts = np.cumsum([self.num_tokens, *map(len, contents)])[: len(contents)]
            self._starts.write(starts.astype("<u8").tobytes())
            self.num_rows += len(contents)
        self._write(b"".join(contents))
        self.num_tokens += sum(map(len, contents))

    def finish(self, *, num_empty: int) -> Header:
        """Append the table of rows, and write the header at the beginning."""
        self._write(bytes(-self._stream.tell() % 8))
        if self.kind != "stream":
            self._starts.write(struct.pack("<Q", self.num_tokens))
            self._starts.seek(0)
            while content := self._starts.read(_CHUNK_BYTES):
                self._write(content)
        self._stream.flush()
        header = Header(
            kind=self.kind,
            dtype=self.dtype,
            num_tokens=self.num_tokens,
            num_rows=self.num_rows,
            sha256=self._digest.hexdigest(),
            blocks_sha256=blocks_digest(self._stream, self._stream.tell()),
            tokenizer=self.tokenizer,
            vocabulary=self.vocabulary,
            num_empty=num_empty,
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
