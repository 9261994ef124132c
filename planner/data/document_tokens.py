"""Documents of text -> ids of a tokenizer, in bounded memory: long documents are cut into pieces, short ones batched.

A document is the tokens that the tokenizer makes of its text, after the beginning token, if the tokenizer begins texts
with one, and before the end-of-sequence token. Megatron-LM (`preprocess_data.py --append-eod`), datatrove's
`DocumentTokenizer` with an `eos_token` (nanotron) and TRL end documents the same way, and like Megatron-LM this leaves
documents without tokens out. Text that looks like a special token stays text, so that no document ends where its text
names one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.data.hf_tokenizer import HfTokenizer
from planner.data.samples import Ids
from planner.errors import DataError

# The tokenizers library takes about a hundred bytes per token, and uses a core per text of a batch. The first batches
# are small, so that progress shows soon.
_FIRST_BATCH_CHARS, _BATCH_CHARS = 2**18, 2**22
_PIECE_CHARS = 2**16
# The text around a piece that is tokenized with it, so that its first and last tokens are those of the whole text.
_AROUND_CHARS = 2**10


@dataclass(frozen=True, kw_only=True)
class Part:
    """Consecutive text of a document."""

    text: str
    where: str
    """the document's place, for errors"""
    read: int
    """bytes of the source up to here"""
    is_last: bool
    """whether the document ends here"""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A piece of a document: the characters `[begin, end)` of `text`. The others are those around it."""

    text: str
    begin: int
    end: int
    where: str
    read: int
    is_last: bool

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing around it."""
        return self.begin == 0 and self.end == len(self.text)


@dataclass(frozen=True, kw_only=True)
class DocumentIds:
    """Consecutive ids of a document."""

    ids: Ids
    """shape `(n,)`"""
    begins: bool
    """whether the document begins with them"""
    read: int
    """bytes of the source up to here"""


@dataclass
class DocumentTokenizer:
    """Turns documents into ids. It counts the documents that it leaves out."""

    tokenizer: HfTokenizer
    num_empty: int = 0
    """documents without tokens"""

    def ids(self, parts: Iterable[Part]) -> Iterator[DocumentIds]:
        """The ids of all documents in order, at least two of each that is not empty.

        Raises:
            DataError: the tokenizer fails, or makes an id that the model does not know.
        """
        has_begun = False
        for batch in batches(pieces(parts)):
            for piece, own in zip(batch, self._tokenized(batch), strict=True):
                begins = not has_begun and len(own) > 0
                has_begun |= begins
                ends = piece.is_last and has_begun
                self.num_empty += piece.is_last and not has_begun
                found = [*self.tokenizer.begin * begins, *own, *(self.tokenizer.end,) * ends]
                self._require_known(piece, found)
                yield DocumentIds(ids=_array(found), begins=begins, read=piece.read)
                has_begun &= not piece.is_last

    def _tokenized(self, batch: list[Piece]) -> Iterator[list[int]]:
        encodings = self.tokenizer.documents([piece.text for piece in batch])
        for piece, encoding in zip(batch, encodings, strict=True):
            yield encoding.ids if piece.is_whole else encoding.ids[_own(piece, encoding.offsets)]

    def _require_known(self, piece: Piece, ids: list[int]) -> None:
        size = self.tokenizer.vocabulary
        if size is not None and (largest := max(ids, default=0)) >= size:
            raise DataError(
                f"{piece.where}: it has token {largest}, and the model knows {size}, from 0. Is it another model's "
                "tokenizer?"
            )


def pieces(parts: Iterable[Part]) -> Iterator[Piece]:
    """Cut each document into pieces, with the text around each. How a document comes in parts changes nothing."""
    before, pending = "", ""
    for part in parts:
        pending += part.text
        # A piece is cut off when all that stands around it is there.
        while len(pending) > _PIECE_CHARS + _AROUND_CHARS:
            at = _line_begin(pending)
            yield Piece(
                text=before + pending[: at + _AROUND_CHARS],
                begin=len(before),
                end=len(before) + at,
                where=part.where,
                read=part.read,
                is_last=False,
            )
            before, pending = (before + pending[:at])[-_AROUND_CHARS:], pending[at:]
        if part.is_last:
            text = before + pending
            yield Piece(text=text, begin=len(before), end=len(text), where=part.where, read=part.read, is_last=True)
            before, pending = "", ""


def _line_begin(text: str) -> int:
    """Where the last line before `_PIECE_CHARS` begins, which does not begin blank. Else a blank, else there.

    Tokenizers that split text by a pattern never put a line's first letter into one token with the line's end before.
    """
    at = text.rfind("\n", 0, _PIECE_CHARS) + 1
    while at and text[at].isspace():
        at = text.rfind("\n", 0, at - 1) + 1
    return at or max(text.rfind(" ", 0, _PIECE_CHARS), 0) or _PIECE_CHARS


def batches(found: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Group pieces into lists of about `_FIRST_BATCH_CHARS` characters, then of twice as many up to `_BATCH_CHARS`."""
    batch: list[Piece] = []
    num_chars, most_chars = 0, min(_FIRST_BATCH_CHARS, _BATCH_CHARS)
    for piece in found:
        batch.append(piece)
        # Each text costs something even if it is empty.
        num_chars += len(piece.text) + 64
        if num_chars >= most_chars:
            yield batch
            batch, num_chars, most_chars = [], 0, min(2 * most_chars, _BATCH_CHARS)
    if batch:
        yield batch


def _own(piece: Piece, offsets: list[tuple[int, int]]) -> slice:
    """The tokens that begin in the piece."""
    starts: NDArray[np.int64] = np.array([start for start, _ in offsets], np.int64)
    # What stands after the last piece is nothing. A token of blanks may have the text's end as its offset.
    stop = len(starts) if piece.is_last else int(np.searchsorted(starts, piece.end))
    return slice(int(np.searchsorted(starts, piece.begin)), stop)


def _array(ids: list[int]) -> Ids:
    return np.array(ids, np.int32)
