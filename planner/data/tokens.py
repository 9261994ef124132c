"""Token files: prepared once (`planner.data.prepare_tokens`), opened in constant time, read through a memory map.

    4096 bytes  one line, padded with blanks: the magic, a seal (SHA-256 of the rest), and the header as JSON
    tokens      `num_tokens` times `dtype`, little-endian, and zeros up to the next multiple of 8
    starts      rows and documents: `num_rows + 1` times uint64, where each one begins and where the last one ends, in
                tokens. A stream has none: `model.context` cuts it

The tokens are those before the cut to a context, so one file serves every job. Bytes are kept as a `stream` (from
`text`) or as `rows` (from `jsonl`), ids of a tokenizer as `documents`: one per file of text or row of jsonl.
"""

import json
import mmap
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from planner.base.format_versions import STORED, refusal
from planner.base.json_text import json_object
from planner.data.base import RowContribution, TokenIds, token_row_counts
from planner.data.paths import opened, resolve
from planner.errors import DataError

FORMAT = STORED["tokens"]
HEADER_BYTES = 4096
_MAGIC = b"planner-tokens "
BYTES = "bytes"
"""the `tokenizer` of a file of bytes"""
_ITEM_SIZES = {"uint8": 1, "uint16": 2, "uint32": 4}
# Read at each opening in milliseconds: enough to notice the content of another file or an incomplete copy.
_BLOCK_BYTES = 4096
_NUM_BLOCKS = 64


@dataclass(frozen=True, kw_only=True)
class Header:
    """The header of a token file."""

    kind: Literal["stream", "rows", "documents"]
    dtype: str
    num_tokens: int
    num_rows: int
    """rows or documents. 0 in a stream"""
    sha256: str
    """SHA-256 of everything after the header, computed when the file was prepared"""
    blocks_sha256: str
    """SHA-256 of `_NUM_BLOCKS` blocks after the header, checked at every opening"""
    tokenizer: str = BYTES
    """the `HfTokenizer.ids_digest` of documents"""
    vocabulary: int = 256
    """all ids are in `[0, vocabulary)`"""
    num_empty: int = 0
    """documents without tokens, which were left out"""
    format: int = FORMAT

    @property
    def is_sound(self) -> bool:
        """Whether every value has the right type. JSON may hold true, null or 1.5 instead."""
        counts = (self.num_tokens, self.num_rows, self.vocabulary, self.num_empty)
        digests = (self.sha256, self.blocks_sha256, *(() if self.tokenizer == BYTES else (self.tokenizer,)))
        return (
            all(isinstance(text, str) for text in (self.kind, self.dtype, *digests))
            and self.kind in {"stream", "rows", "documents"}
            and self.dtype in _ITEM_SIZES
            and (self.kind == "documents") == (self.tokenizer != BYTES)
            and (self.kind == "documents") == (self.dtype != "uint8")
            and all(re.fullmatch("[0-9a-f]{64}", text) for text in digests)
            and all(type(number) is int and number >= 0 for number in counts)
        )

    @property
    def starts_at(self) -> int:
        """Byte offset of the table of rows."""
        return HEADER_BYTES + -(-self.num_tokens * _ITEM_SIZES[self.dtype] // 8) * 8

    @property
    def num_bytes(self) -> int:
        """Size of the whole file in bytes."""
        return self.starts_at + (0 if self.kind == "stream" else 8 * (self.num_rows + 1))

    def encode(self) -> bytes:
        """The header as the first `HEADER_BYTES` of the file."""
        text = json.dumps(asdict(self), sort_keys=True).encode()
        rest = b" " + text.ljust(HEADER_BYTES - len(_MAGIC) - 64 - 2) + b"\n"
        return _MAGIC + sha256(rest).hexdigest().encode() + rest


def read_header(file: Path, stream: BinaryIO) -> Header:
    """The header of a token file, after checks of its seal, the file's size and some blocks.

    Raises:
        DataError: the file is not a token file, has another format, or is torn or altered.
    """
    head = stream.read(HEADER_BYTES)
    if not head.startswith(_MAGIC):
        raise DataError.of(
            "data.path",
            f"{file} is not a token file. Make one with `planner prepare`, or write data.kind: text or jsonl",
        )
    seal, rest = head[len(_MAGIC) :][:64], head[len(_MAGIC) + 64 :]
    if sha256(rest).hexdigest().encode() != seal:
        raise DataError.of("data.path", f"{file}: its header is torn or altered. Prepare it again")
    # The seal is right, so some version of planner wrote this header.
    try:
        value = json_object(rest)
        if why := refusal(value.get("format"), "tokens"):
            raise DataError.of("data.path", f"{file}: {why}. Use the version that prepared it, or prepare it again")
        header = Header(**value)
    except (TypeError, ValueError):
        header = None
    if header is None or not header.is_sound:
        raise DataError.of("data.path", f"{file}: its header is not one that planner writes. Prepare it again")
    if (size := os.fstat(stream.fileno()).st_size) != header.num_bytes:
        raise DataError.of(
            "data.path",
            f"{file} has {size} bytes, and its header says {header.num_bytes}, as after an incomplete copy. "
            "Copy or prepare it again",
        )
    if blocks_digest(stream, header.num_bytes) != header.blocks_sha256:
        raise DataError.of("data.path", f"{file}: its content was altered after it was prepared. Prepare it again")
    return header


def blocks_digest(stream: BinaryIO, num_bytes: int) -> str:
    """SHA-256 over evenly spaced blocks after the header, including the first and the last one."""
    last = max(num_bytes - _BLOCK_BYTES, HEADER_BYTES)
    digest = sha256()
    for number in range(_NUM_BLOCKS):
        start = HEADER_BYTES + (last - HEADER_BYTES) * number // (_NUM_BLOCKS - 1)
        digest.update(os.pread(stream.fileno(), _BLOCK_BYTES, start))
    return digest.hexdigest()


def dtype_of(vocabulary: int) -> Literal["uint16", "uint32"]:
    """The narrowest type that holds all ids in `[0, vocabulary)` of a tokenizer."""
    return "uint16" if vocabulary <= 2**16 else "uint32"


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenFile:
    """A token file, mapped into memory. Its arrays are views of the file, and pages are read when they are used."""

    path: Path
    header: Header
    mapped: mmap.mmap
    ids: NDArray[Any]
    """all tokens, shape `(num_tokens,)`"""
    starts: NDArray[np.uint64]
    """shape `(num_rows + 1,)`, empty for a stream"""

    @classmethod
    def open(cls, path: str) -> "TokenFile":
        """Map the file, and check its header, its size and some of its blocks.

        Raises:
            DataError: the path is not one file, or the file is not a token file, torn or altered.
        """
        _, files = resolve(path)
        if len(files) != 1:
            raise DataError.of(
                "data.path", f"{path!r} names {len(files)} files. Write the one that `planner prepare` made"
            )
        with opened(files[0]) as stream:
            header = read_header(files[0], stream)
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        num_starts = (header.num_bytes - header.starts_at) // 8
        dtype = np.dtype(header.dtype).newbyteorder("<")
        return cls(
            path=files[0],
            header=header,
            mapped=mapped,
            ids=np.frombuffer(mapped, dtype, header.num_tokens, HEADER_BYTES),
            starts=np.frombuffer(mapped, "<u8", num_starts, header.starts_at if num_starts else 0),
        )

    @classmethod
    def open_same(cls, path: str, fingerprint: str, *cut: object) -> "TokenFile":
        """The file that another process has mapped.

        Args:
            path: of the file.
            fingerprint: of the file there.
            cut: what the fingerprint was taken with.

        Raises:
            DataError: another file is there now.
        """
        file = cls.open(path)
        if file.fingerprint(*cut) != fingerprint:
            raise DataError.of("data.path", f"{path} was replaced while the run was reading it. Start the run again")
        return file

    def fingerprint(self, *cut: object) -> str:
        """64 hex digits over the header's facts about the content, and how it is cut. File names do not count."""
        h = self.header
        return sha256(repr(("tokens", h.kind, h.dtype, h.num_tokens, h.num_rows, h.sha256, *cut)).encode()).hexdigest()

    def require_unchanged(self) -> None:
        """Check the file's size: reading a page beyond the end of the file would kill the process (SIGBUS).

        Raises:
            DataError: the file has shrunk or grown.
        """
        if self.mapped.size() != self.header.num_bytes:
            raise DataError.of(
                "data.path", f"{self.path} has changed while the run was reading it. Start the run again"
            )

    def bounds(self, row: int) -> tuple[int, int]:
        """Where a row or a document begins and ends, in tokens. It has at least two of them.

        Raises:
            DataError: the table of rows was altered.
        """
        start, stop = int(self.starts[row]), int(self.starts[row + 1])
        if not start + 2 <= stop <= self.header.num_tokens:
            raise self.altered(row)
        return start, stop

    def altered(self, row: int) -> DataError:
        """The error for a table of rows that nobody can have written like this."""
        return DataError.of("data.path", f"{self.path}: its table of rows was altered at row {row}. Prepare it again")


@dataclass(frozen=True, kw_only=True, eq=False)
class TokensDataset:
    """The rows of a token file of bytes: those of `TextDataset` (a stream) or of `JsonlDataset` (rows)."""

    file: TokenFile
    context: int

    notes: ClassVar[tuple[str, ...]] = ()
    """no notes: rows are used as they are, or cut to the context"""

    @classmethod
    def open(cls, path: str, context: int) -> "TokensDataset":
        """Map the file, and check its header, its size and some of its blocks.

        Raises:
            DataError: the path is not one file, or the file is not a token file, torn or altered, or not of bytes.
        """
        return cls.of(TokenFile.open(path), context)

    @classmethod
    def of(cls, file: TokenFile, context: int) -> "TokensDataset":
        """The rows of an opened file.

        Raises:
            DataError: its tokens are not bytes.
        """
        if file.header.tokenizer != BYTES:
            raise DataError.of(
                "data.path",
                f"{file.path} holds ids of a tokenizer ({file.header.vocabulary} of them), and model.kind gpt reads "
                "bytes. Write model.kind: hf, or prepare the text as bytes",
            )
        return cls(file=file, context=context)

    @property
    def header(self) -> Header:
        """The file's header."""
        return self.file.header

    @property
    def num_rows(self) -> int:
        """Number of rows, equal to that of the source read as `text` or `jsonl`."""
        return self.header.num_rows if self.header.kind == "rows" else num_windows(self.header, self.context)

    @property
    def fingerprint(self) -> str:
        """64 hex digits over the header's facts about the content, and the context. File names do not count."""
        return self.file.fingerprint(self.context)

    def tokens(self, row: int) -> TokenIds:
        """The row's token ids, shape `(n,)`, 2 <= n <= context + 1.

        Raises:
            DataError: the file has shrunk, or its table of rows was altered.
        """
        self.file.require_unchanged()
        if self.header.kind == "stream":
            start = row * self.context
            return self.file.ids[start : start + self.context + 1]
        start, stop = self.file.bounds(row)
        return self.file.ids[start : min(stop, start + self.context + 1)]

    def evidence(self, row: int) -> RowContribution:
        """The counts of the row's tokens, read now.

        Raises:
            DataError: the row cannot be read any more.
        """
        return token_row_counts(row, self.tokens(row))

    def __reduce__(self) -> tuple[Callable[[str, int, str], "TokensDataset"], tuple[str, int, str]]:
        """Pickle the path and fingerprint, so that another process maps the file itself."""
        return _reopen, (str(self.file.path), self.context, self.fingerprint)


def num_windows(header: Header, context: int) -> int:
    """How many windows of `context` inputs a file has. The last one may be shorter."""
    return -(-(header.num_tokens - 1) // context)


def _reopen(path: str, context: int, fingerprint: str) -> TokensDataset:
    return TokensDataset.of(TokenFile.open_same(path, fingerprint, context), context)
