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
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from planner.base.format_versions import STORED, refusal
from planner.base.json_text import json_object
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

    name: str
    """where its content is from, for errors"""
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
        return cls.at(files[0])

    @classmethod
    def at(cls, path: Path, name: str = "") -> "TokenFile":
        """Map the file at a path, and check its header, its size and some of its blocks.

        Args:
            path: of the file.
            name: where its content is from. Empty: the path says so.

        Raises:
            DataError: it is not a token file, torn or altered.
        """
        with opened(path) as stream:
            header = read_header(path, stream)
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        num_starts = (header.num_bytes - header.starts_at) // 8
        dtype = np.dtype(header.dtype).newbyteorder("<")
        return cls(
            name=name or str(path),
            path=path,
            header=header,
            mapped=mapped,
            ids=np.frombuffer(mapped, dtype, header.num_tokens, HEADER_BYTES),
            starts=np.frombuffer(mapped, "<u8", num_starts, header.starts_at if num_starts else 0),
        )

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return self.header.num_tokens

    def fingerprint(self, *cut: object) -> str:
        """64 hex digits over the header's facts about the content, and how it is cut. File names do not count."""
        h = self.header
        return sha256(repr(("tokens", h.kind, h.dtype, h.num_tokens, h.num_rows, h.sha256, *cut)).encode()).hexdigest()

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The tokens `[start, stop)`, as a view of the file.

        Raises:
            DataError: the file has shrunk or grown.
        """
        # Reading a page beyond the end of the file would kill the process (SIGBUS).
        if self.mapped.size() != self.header.num_bytes:
            raise DataError.of(
                "data.path", f"{self.name} has changed while the run was reading it. Start the run again"
            )
        return self.ids[start:stop]

    def __reduce__(self) -> tuple[Callable[[str, Path, str], "TokenFile"], tuple[str, Path, str]]:
        """Pickle the path and fingerprint, so that another process maps the file itself."""
        return _reopen, (self.name, self.path, self.fingerprint())


def _reopen(name: str, path: Path, fingerprint: str) -> TokenFile:
    """The file that another process has mapped.

    Raises:
        DataError: another file is there now.
    """
    file = TokenFile.at(path, name)
    if file.fingerprint() != fingerprint:
        raise DataError.of("data.path", f"{name} was replaced while the run was reading it. Start the run again")
    return file
