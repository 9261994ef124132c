"""The data set of `data.kind: tokens` for models with a tokenizer: documents of a token file as samples of text.

Window i has the inputs `[i * context, (i + 1) * context)` of all documents joined, and as labels the tokens after them.
So every token of the file but the first is a label once per epoch. The last window may be shorter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.base.text import counted
from planner.data.base import RowContribution, sample_row_counts
from planner.data.hf_tokenizer import HfTokenizer
from planner.data.samples import NO_LOSS, Ids, Sample, Text
from planner.data.tokens import BYTES, TokenFile, num_windows
from planner.errors import DataError
from planner.job import HfModel, TokensData

Documents = Literal["join", "mask", "separate"]


def open_documents(file: TokenFile, data: TokensData, model: HfModel) -> "DocumentSet":
    """The samples of an opened token file for a model.

    Raises:
        DataError: the file's tokens are not those of the model's tokenizer, or the tokenizer cannot be loaded.
    """
    prepare_it = f"Prepare the text again: planner prepare --tokenizer {model.path} SOURCE OUTPUT"
    if file.header.tokenizer == BYTES:
        raise DataError.of("data.path", f"{file.path} holds bytes, and {model.path} reads ids. {prepare_it}")
    tokenizer = HfTokenizer.load(model)
    if tokenizer.ids_digest != file.header.tokenizer:
        raise DataError.of(
            "data.path",
            f"{file.path} was prepared with another tokenizer than that of {model.path} (the file has "
            f"{file.header.vocabulary} ids, this tokenizer {tokenizer.num_ids}). {prepare_it}",
        )
    known = min(file.header.vocabulary, tokenizer.vocabulary or file.header.vocabulary)
    return DocumentSet(file=file, context=model.context, documents=data.documents, known=known)


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentSet:
    """Windows over joined documents, or one sample per document."""

    file: TokenFile
    context: int
    """most inputs of a sample"""
    documents: Documents
    """as the job's `data.documents`"""
    known: int
    """the model knows the ids in `[0, known)`"""

    @property
    def num_rows(self) -> int:
        """Number of samples."""
        header = self.file.header
        return header.num_rows if self.documents == "separate" else num_windows(header, self.context)

    @property
    def fingerprint(self) -> str:
        """64 hex digits over the header's facts about the content, and how it is cut. File names do not count."""
        return self.file.fingerprint(self.context, self.documents)

    @property
    def notes(self) -> tuple[str, ...]:
        """How many documents were left out of the file, if any."""
        left_out = self.file.header.num_empty
        return (f"{counted(left_out, 'document')} without tokens left out when the file was prepared",) * bool(left_out)

    def sample(self, row: int) -> Text:
        """The row's window or document.

        Raises:
            DataError: the file has shrunk or was altered.
        """
        self.file.require_unchanged()
        if self.documents == "separate":
            start, stop = self.file.bounds(row)
        else:
            start, stop = row * self.context, self.file.header.num_tokens
        ids = self.file.ids[start : min(stop, start + self.context + 1)].astype(np.int32)
        if (largest := int(ids.max())) >= self.known:
            raise DataError.of(
                "data.path",
                f"{self.file.path} has token {largest} in row {row}, and the model knows {self.known}, from 0. "
                "Prepare it again",
            )
        if self.documents != "mask":
            return Text(inputs=ids[:-1], labels=ids[1:])
        numbers = self._documents(row, start, len(ids))
        # The first token of a document is not predicted from the one before.
        labels = np.where(numbers[1:] == numbers[:-1], ids[1:], np.int32(NO_LOSS))
        return Text(inputs=ids[:-1], labels=labels, documents=numbers[:-1])

    def samples(self, rows: Sequence[int]) -> list[Sample]:
        """The rows' windows or documents.

        Raises:
            DataError: the file has shrunk or was altered.
        """
        return [self.sample(row) for row in rows]

    def _documents(self, row: int, start: int, length: int) -> Ids:
        """The document of each token of `[start, start + length)`, `(length,)`, numbered from 0."""
        # As uint64: with any other integer, numpy would convert the whole table first.
        first, last = np.searchsorted(self.file.starts, np.array([start, start + length], np.uint64), side="right")
        # From the document that the window begins in. Each has at least two tokens.
        begins = self.file.starts[max(first - 1, 0) : last].astype(np.int64) - start
        if not first or begins[0] > 0 or begins[-1] > length or (np.diff(begins) < 2).any():
            raise self.file.altered(row)
        numbers = np.zeros(length, np.int32)
        numbers[begins[1:][begins[1:] < length]] = 1
        return np.cumsum(numbers, dtype=np.int32)

    def evidence(self, row: int) -> RowContribution:
        """The counts of the row's sample, read now.

        Raises:
            DataError: the row cannot be read any more.
        """
        return sample_row_counts(row, self.sample(row))

    def __reduce__(self) -> tuple[Callable[..., "DocumentSet"], tuple[str, str, int, Documents, int]]:
        """Pickle the path and fingerprint, so that another process maps the file itself."""
        return _reopen, (str(self.file.path), self.fingerprint, self.context, self.documents, self.known)


def _reopen(path: str, fingerprint: str, context: int, documents: Documents, known: int) -> DocumentSet:
    file = TokenFile.open_same(path, fingerprint, context, documents)
    return DocumentSet(file=file, context=context, documents=documents, known=known)
