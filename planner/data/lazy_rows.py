"""The rows of one data set as samples that are made when they are asked for, and how long these are."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from planner.base.disk import cache_folder
from planner.base.text import counted
from planner.data.bad_rows import NO_SKIP, BadRows
from planner.data.base import Progress, RowLengths
from planner.data.kept_lengths import KeptLengths, LengthsPiece, keep_lengths
from planner.data.one_format import OneFormat
from planner.data.row import Row
from planner.data.row_access import RowAccess
from planner.data.row_tokenizer import RowTokenizer, unequal_samples
from planner.data.sample_cache import LENGTHS
from planner.data.sample_sets import SampleSet, samples_digest
from planner.data.samples import Sample
from planner.data.shared_array import SharedArray
from planner.data.tokenizer import Tokenizer
from planner.errors import DataError
from planner.job import MixtureSet, RowsData

# Raise it if the same rows, settings and tokenizer make other samples: `tests/data/test_lazy_sets.py` has samples of
# all formats. The digest of the package's code would call a run of an earlier version another run.
_SAMPLES = 1
# Rows that are tokenized together to find their lengths.
_ROWS_PER_BATCH = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleMaker:
    """What turns rows of one set into samples."""

    data: RowsData
    source: MixtureSet
    context: int
    tokenizer: Tokenizer
    kind: type[RowTokenizer]
    one: OneFormat

    def rows(self, rows: list[Row]) -> RowTokenizer:
        """The rows, tokenized."""
        tokenized = self.kind(self.data, self.source.path, self.context, self.tokenizer, self.one)
        tokenized.add(rows)
        return tokenized

    def fingerprint(self, content: str, used: tuple[int, ...]) -> str:
        """64 hex digits over everything that the samples depend on."""
        ours = {"mixture", *MixtureSet.model_fields, "seed", "bad_rows", "tokenize"}
        settings = self.data.model_dump(mode="json", exclude=ours, exclude_defaults=True)
        columns = sorted(self.source.columns.items()) if self.source.columns else None
        facts = (content, self.source.split, columns, used, sorted(settings.items()), self.context)
        return facts_digest(("on demand", _SAMPLES, *facts, self.tokenizer.digest, *self.kind.code_of_package()))


@dataclass(frozen=True, kw_only=True, eq=False)
class LazyRows:
    """The samples of one set."""

    access: RowAccess
    make: SampleMaker
    chosen: SharedArray | None
    """int64: the numbers of the rows that an epoch uses. None: each row once"""
    num_used: int
    per_row: int
    """samples of a row: 2 for a pair as feedback"""
    fingerprint: str
    """64 hex digits over everything that the samples depend on, and over their lengths, if these are kept"""
    kept: KeptLengths | None = None
    """the lengths of the samples of all rows that an epoch uses, by row and number in it"""

    @property
    def num_rows(self) -> int:
        """Number of samples."""
        return self.num_used * self.per_row

    def samples(self, numbers: NDArray[np.int64]) -> list[Sample]:
        """The samples with these numbers.

        Raises:
            DataError: a row cannot be used or read any more, or has another length than it had.
        """
        rows, number_in_row = self._rows(numbers)
        made = self._made(rows)
        places = np.arange(len(rows)) * self.per_row + number_in_row
        if self.kept is not None:
            self._require_kept(rows, self.kept.of(rows * self.per_row + number_in_row), made.lengths(places))
        return [made.sample(place) for place in places.tolist()]

    def lengths(self, numbers: NDArray[np.int64]) -> RowLengths:
        """How long the samples with these numbers are. If lengths are not kept, the rows are tokenized now.

        Raises:
            DataError: a row cannot be used or read any more.
        """
        rows, number_in_row = self._rows(numbers)
        if self.kept is not None:
            return self.kept.of(rows * self.per_row + number_in_row)
        return self._made(rows).lengths(np.arange(len(rows)) * self.per_row + number_in_row)

    def measured(self, progress: Progress) -> "LazyRows":
        """The same rows with the lengths of all samples that an epoch uses.

        Raises:
            DataError: a row cannot be used.
        """
        assert self.kept is None  # else the fingerprint would cover the lengths twice
        stamps, num_rows = self.access.stamps, len(self.access.index.positions.array)
        chosen = samples_digest("chosen", self.chosen) if self.chosen else ""
        kept = keep_lengths(
            (self.fingerprint, stamps, self.per_row, chosen),
            sum(size for _, size, _ in stamps),
            num_rows,
            self.per_row,
            lambda rows: self._piece(rows, lambda done: progress(done, num_rows)),
            partial(progress, 0, num_rows),
        )
        return replace(self, kept=kept, fingerprint=facts_digest((self.fingerprint, kept.digest)))

    def _piece(self, rows: range, tell: Callable[[int], None]) -> LengthsPiece:
        """The lengths of the samples of consecutive rows. Those of rows that no epoch uses are 0.

        Raises:
            DataError: rows cannot be used.
        """
        found = LengthsPiece(tokens=SharedArray.new("<i8"), squares=SharedArray.new("<i8"))
        bad, num_tokenized = BadRows(what="rows that were tokenized", instead=NO_SKIP), 0
        for start in rows[::_ROWS_PER_BATCH]:
            tell(start)
            batch = range(start, min(start + _ROWS_PER_BATCH, rows.stop))
            tokens, squares = np.zeros((2, len(batch), self.per_row), np.int64)
            if len(used := self._used(batch)):
                tokenized = self.make.rows(self.access.rows(used.tolist()))
                num_tokenized += len(used)
                bad.found.update(tokenized.bad_rows.found)
                if bad.found:
                    continue
                lengths = self._whole(tokenized, used).lengths(np.arange(len(used) * self.per_row))
                tokens[used - start] = lengths.tokens.reshape(-1, self.per_row)
                squares[used - start] = lengths.squares.reshape(-1, self.per_row)
            found.tokens.append(tokens)
            found.squares.append(squares)
        if bad.found:
            raise DataError(bad.refusal(num_tokenized))
        return found

    def _used(self, rows: range) -> NDArray[np.int64]:
        """Those of consecutive rows that an epoch uses, each once, ascending."""
        if self.chosen is None:
            return np.arange(rows.start, rows.stop)
        first, end = np.searchsorted(self.chosen.array, (rows.start, rows.stop))
        used: NDArray[np.int64] = np.unique(self.chosen.array[first:end])
        return used

    def _rows(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The row of each sample, and the sample's number in it. Both have shape `(n,)`."""
        used, number_in_row = np.divmod(numbers, self.per_row)
        return (self.chosen.array[used] if self.chosen else used), number_in_row

    def _made(self, rows: NDArray[np.int64]) -> SampleSet:
        """All samples of some rows, row by row.

        Raises:
            DataError: a row cannot be used or read any more.
        """
        tokenized = self.make.rows(self.access.rows(rows.tolist()))
        if tokenized.bad_rows.found:
            raise self._refusal(rows.tolist())
        return self._whole(tokenized, rows)

    def _whole(self, tokenized: RowTokenizer, rows: NDArray[np.int64]) -> SampleSet:
        if tokenized.samples_of_each() != self.per_row:
            raise unequal_samples(self.access.where(int(rows[0])))
        return tokenized.finish()

    def _require_kept(self, rows: NDArray[np.int64], kept: RowLengths, now: RowLengths) -> None:
        """Check that samples have the lengths from which it was decided which worker computes them.

        Raises:
            DataError: one has others.
        """
        differs = np.flatnonzero((kept.tokens != now.tokens) | (kept.squares != now.squares))
        if not len(differs):
            return
        first = int(differs[0])
        before, after = int(kept.tokens[first]), int(now.tokens[first])
        other = f", and had {before}" if before != after else " in sequences of other lengths than"
        raise DataError.of(
            "data.path",
            f"{self.access.where(int(rows[first]))} has {counted(after, 'token')}{other} when the lengths of all rows "
            "were found. Restore its file, or start a new run (with large data, first remove "
            f"{cache_folder() / LENGTHS})",
        )

    def _refusal(self, rows: list[int]) -> DataError:
        """The error for the first of some rows that cannot be used."""
        for number in rows:
            if found := self.make.rows(self.access.rows([number])).bad_rows.found:
                break
        reason = next(iter(found.values()))
        return DataError.of(
            "data.path",
            f"{self.access.where(number)} cannot be used: {reason}. Correct the row, or write data.tokenize: ahead "
            "with data.bad_rows: skip",
        )


def facts_digest(facts: object) -> str:
    """SHA-256 over the text of plain values: 64 hex digits."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()
