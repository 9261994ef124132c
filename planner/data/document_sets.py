"""The data set of text: documents of tokens as samples, of any tokenizer. Bytes are one tokenizer.

Window i has the inputs `[i * context, (i + 1) * context)` of all documents joined, and as labels the tokens after them.
So every token but the first is a label once per epoch. The last window may be shorter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from planner.data.base import RowContribution, RowLengths, SetRows, sample_row_counts
from planner.data.row_lengths import found_in, row_sums, runs, sums_of_sequences
from planner.data.samples import NO_LOSS, Ids, Text
from planner.errors import DataError

Documents = Literal["join", "mask", "separate"]


class TokenSource(Protocol):
    """Tokens of documents, one document after another, with random access. Picklable, for loader processes."""

    @property
    def name(self) -> str:
        """Where the tokens are, for errors."""
        ...

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        ...

    @property
    def starts(self) -> NDArray[np.uint64]:
        """Where each document begins and where the last one ends, in tokens. Empty if only windows are made of it."""
        ...

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The tokens `[start, stop)`, of any unsigned type.

        Raises:
            DataError: they cannot be read any more, or have changed.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentSet:
    """Windows over joined documents, or one sample per document."""

    source: TokenSource
    context: int
    """most inputs of a sample"""
    documents: Documents
    """as the job's `data.documents`"""
    known: int
    """the model knows the ids in `[0, known)`"""
    fingerprint: str
    """64 hex digits over the content, and how it is cut. File names of token files do not count."""
    notes: tuple[str, ...] = ()

    sets: ClassVar[tuple[SetRows, ...]] = ()

    @property
    def num_rows(self) -> int:
        """Number of samples."""
        if self.documents == "separate":
            return len(self.source.starts) - 1
        return -(-(self.source.num_tokens - 1) // self.context)

    def sample(self, row: int) -> Text:
        """The row's window or document.

        Raises:
            DataError: the files have changed.
        """
        start, stop = self._bounds(row)
        found = self.source.read(start, min(stop, start + self.context + 1))
        # Before the conversion, which would make large ids negative.
        if (largest := int(found.max())) >= self.known:
            raise DataError.of(
                "data.path",
                f"{self.source.name} has token {largest} in row {row}, and the model knows {self.known}, from 0. "
                "Prepare it again",
            )
        ids = found.astype(np.int32)
        if self.documents != "mask":
            return Text.of(ids)
        numbers = self._numbers(row, start, len(ids))
        # The first token of a document is not predicted from the one before.
        labels = np.where(numbers[1:] == numbers[:-1], ids[1:], np.int32(NO_LOSS))
        return Text(inputs=ids[:-1], labels=labels, documents=numbers[:-1])

    def samples(self, rows: Sequence[int]) -> list[Text]:
        """The rows' windows or documents.

        Raises:
            DataError: the files have changed.
        """
        return [self.sample(row) for row in rows]

    def evidence(self, row: int) -> RowContribution:
        """The counts of the row's sample, read now.

        Raises:
            DataError: the row cannot be read any more.
        """
        return sample_row_counts(row, self.sample(row))

    def evidence_of_bytes(self, row: int) -> RowContribution:
        """The counts of a row of bytes in ledgers before format 4, whose checksums have one byte for each token.

        Raises:
            DataError: the row cannot be read any more.
        """
        text = self.sample(row)
        parts = (ids.astype(np.uint8).tobytes() for ids in (text.inputs, text.labels))
        digest = blake2b(b"".join((row.to_bytes(8, "little"), *parts)), digest_size=8).digest()
        return RowContribution(tokens=text.num_tokens, check_sum=int.from_bytes(digest, "little"))

    def lengths(self, rows: Sequence[int] | NDArray[np.int64]) -> RowLengths:
        """How long the rows' windows or documents are. The tokens are not read.

        Raises:
            DataError: the table of documents was altered.
        """
        numbers = np.asarray(rows, np.int64)
        if self.documents == "separate":
            begins, ends = (self.source.starts[numbers + i].astype(np.int64) for i in range(2))
            self._require((begins + 2 <= ends) & (ends <= self.source.num_tokens), numbers)
            return sums_of_sequences(np.minimum(ends - begins - 1, self.context))
        starts = numbers * self.context
        inputs = np.minimum(self.source.num_tokens - 1 - starts, self.context)
        return self._cut_lengths(numbers, starts, inputs) if self.documents == "mask" else sums_of_sequences(inputs)

    def _cut_lengths(
        self, numbers: NDArray[np.int64], starts: NDArray[np.int64], inputs: NDArray[np.int64]
    ) -> RowLengths:
        """The lengths of windows `[start, start + inputs)`, in which the parts of documents are apart. All `(n,)`."""
        table, ends = self.source.starts, starts + inputs
        first = found_in(table, starts, "right") - 1
        counts = found_in(table, ends, "left") - first
        self._require((first >= 0) & (counts > 0) & (first + counts < len(table)), numbers)
        touched = runs(first, counts)
        begin, end = (table[touched + i].astype(np.int64) for i in range(2))
        self._require((begin + 2 <= end) & (end <= self.source.num_tokens), np.repeat(numbers, counts))
        # A document's part in its window: from the later of both beginnings to the earlier of both ends.
        begin, end = np.maximum(begin, np.repeat(starts, counts)), np.minimum(end, np.repeat(ends, counts))
        return row_sums(end - begin, counts)

    def _require(self, is_sound: NDArray[np.bool_], numbers: NDArray[np.int64]) -> None:
        """Check something of rows, `(n,)`.

        Raises:
            DataError: it is not so. The table of documents was altered.
        """
        if not is_sound.all():
            raise self._altered(int(numbers[np.argmin(is_sound)]))

    def _bounds(self, row: int) -> tuple[int, int]:
        """Where the row begins, and where it ends unless the context cuts it, in tokens."""
        num_tokens = self.source.num_tokens
        if self.documents != "separate":
            return row * self.context, num_tokens
        start, stop = int(self.source.starts[row]), int(self.source.starts[row + 1])
        # Each document has at least two tokens.
        if not start + 2 <= stop <= num_tokens:
            raise self._altered(row)
        return start, stop

    def _numbers(self, row: int, start: int, length: int) -> Ids:
        """The document of each token of `[start, start + length)`, `(length,)`, numbered from 0."""
        starts = self.source.starts
        # As uint64: with any other integer, numpy would convert the whole table first.
        first, last = np.searchsorted(starts, np.array([start, start + length], np.uint64), side="right")
        # From the document that the window begins in. Each has at least two tokens.
        begins = starts[max(first - 1, 0) : last].astype(np.int64) - start
        if not first or begins[0] > 0 or begins[-1] > length or (np.diff(begins) < 2).any():
            raise self._altered(row)
        numbers = np.zeros(length, np.int32)
        numbers[begins[1:][begins[1:] < length]] = 1
        return np.cumsum(numbers, dtype=np.int32)

    def _altered(self, row: int) -> DataError:
        return DataError.of(
            "data.path", f"{self.source.name}: its table of rows was altered at row {row}. Prepare it again"
        )
