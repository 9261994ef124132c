"""Data sets of prompts and completions whose rows are tokenized when a step needs them (`data.tokenize: on_demand`).

Opening one finds where its rows are, and tokenizes some of them as a check. The samples and their numbers are those of
rows that are tokenized ahead. With `batch.max_tokens`, all rows are tokenized once at the start, and only the lengths
are kept.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from planner.base.disk import cache_folder
from planner.base.text import counted
from planner.data.ahead_sets import tokenizer_of
from planner.data.bad_rows import NO_SKIP, BadRows
from planner.data.base import Progress, RowContribution, RowLengths, SetRows, sample_row_counts
from planner.data.kept_lengths import KeptLengths, LengthsPiece, keep_lengths
from planner.data.mixture import repeats, times_used, used_rows
from planner.data.one_format import OneFormat
from planner.data.row import Row
from planner.data.row_access import RowAccess, open_access
from planner.data.row_tokenizer import RowTokenizer, unequal_samples
from planner.data.sample_cache import LENGTHS
from planner.data.sample_sets import SampleSet, samples_digest
from planner.data.samples import Sample
from planner.data.shared_array import SharedArray
from planner.data.source_stamps import row_stamps
from planner.data.tokenizer import Tokenizer
from planner.errors import DataError
from planner.job import GptModel, HfModel, MixtureSet, RowsData

# Raise it if the same rows, settings and tokenizer make other samples: `tests/data/test_lazy_sets.py` has samples of
# all formats. The digest of the package's code would call a run of an earlier version another run.
_SAMPLES = 1
# Rows that are tokenized at the start, over all sets, and for each set at least.
_TRIED, _LEAST_TRIED = 256, 16
# Rows that are tokenized together to find their lengths.
_ROWS_PER_BATCH = 1000
_NOTE = "rows are tokenized when a step needs them, so it is not known in advance how many are cut"


def open_on_demand(
    data: RowsData, model: GptModel | HfModel, progress: Progress, kind: type[RowTokenizer]
) -> "OnDemandSet":
    """Open rows of prompts and completions for a model, without tokenizing all of them.

    Raises:
        DataError: a file cannot be used, a row has no or another format, one of the rows that are tried cannot be used,
            or rows can only be read one after another.
    """
    # First, so that missing files are reported before a tokenizer is downloaded.
    row_stamps(data)
    tokenizer = tokenizer_of(model)
    opened = [open_access(each, OneFormat(data.kind, kind.formats), progress) for each in data.sets]
    found = [len(access.index.positions.array) for access in opened]
    used = used_rows(data.sets, found) if data.mixture else tuple(found)
    parts, notes = [], [_NOTE, *repeats(data.sets, found, used)]
    for source, access, num_rows, num_used in zip(data.sets, opened, found, used, strict=True):
        chosen = None if num_used == num_rows else _chosen(num_rows, num_used, data.seed)
        make = _Maker(
            data=data,
            source=source,
            context=model.context,
            tokenizer=tokenizer,
            kind=kind,
            one=OneFormat(data.kind, kind.formats),
        )
        tried = np.linspace(0, num_rows - 1, min(num_rows, max(_TRIED // len(found), _LEAST_TRIED))).astype(np.int64)
        tokenized = make.rows(access.rows(tried.tolist()))
        made = tokenized.finish()
        notes += [_tried(source.name if data.mixture else "", len(tried), note) for note in made.notes]
        fingerprint = make.fingerprint(access.index.content, (num_used, data.seed) if chosen else (num_used,))
        parts.append(
            _Part(
                access=access,
                make=make,
                chosen=chosen,
                num_used=num_used,
                per_row=tokenized.samples_of_each(),
                fingerprint=fingerprint,
            )
        )
    return _joined(parts, tuple(notes), is_mixture=bool(data.mixture))


def _chosen(num_rows: int, used: int, seed: int) -> SharedArray:
    chosen = SharedArray.new("<i8")
    chosen.append(np.repeat(np.arange(num_rows), times_used(num_rows, used, seed)))
    return chosen


def _tried(name: str, num_tried: int, note: str) -> str:
    return f"{name}{': ' * bool(name)}of {num_tried} rows that were tried: {note}"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Maker:
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
        return _digest(("on demand", _SAMPLES, *facts, self.tokenizer.digest, *self.kind.code_of_package()))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """The samples of one set."""

    access: RowAccess
    make: _Maker
    chosen: SharedArray | None
    """int64: the numbers of the rows that an epoch uses. None: each row once"""
    num_used: int
    per_row: int
    """samples of a row: 2 for a pair as feedback"""
    fingerprint: str
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

    def measured(self, progress: Progress) -> "_Part":
        """The part with the lengths of all samples that an epoch uses.

        Raises:
            DataError: a row cannot be used.
        """
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
        return replace(self, kept=kept, fingerprint=_digest((self.fingerprint, kept.digest)))

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
        raise DataError.of(
            "data.path",
            f"{self.access.where(int(rows[first]))} has {_length_text(now, first)}, and had "
            f"{_length_text(kept, first)} when the lengths of all rows were found. Restore its file, or remove "
            f"{cache_folder() / LENGTHS} and start a new run",
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


@dataclass(frozen=True, kw_only=True, eq=False)
class OnDemandSet:
    """Samples that are made when they are asked for. The rows of a mixture's sets follow one another."""

    parts: tuple[_Part, ...]
    fingerprint: str
    """64 hex digits over the content of the files, the tokenizer, and all settings that samples depend on"""
    notes: tuple[str, ...]
    """what is known of changes to rows"""
    sets: tuple[SetRows, ...]
    """the sets of a mixture. Empty if there is only one"""

    @property
    def num_rows(self) -> int:
        """Number of samples."""
        return sum(part.num_rows for part in self.parts)

    def sample(self, row: int) -> Sample:
        """The row's sample.

        Raises:
            DataError: the row cannot be used, or its file cannot be read or has changed.
        """
        return self.samples([row])[0]

    def samples(self, rows: Sequence[int]) -> list[Sample]:
        """The rows' samples. The rows of each set are tokenized together.

        Raises:
            DataError: a row cannot be used, or its file cannot be read or has changed.
        """
        asked = np.array(rows, np.int64)
        made: dict[int, Sample] = {}
        for part, places, numbers in self._by_part(asked):
            made.update(zip(places.tolist(), part.samples(numbers), strict=True))
        return [made[place] for place in range(len(asked))]

    def _by_part(self, rows: NDArray[np.int64]) -> Iterator[tuple[_Part, NDArray[np.int64], NDArray[np.int64]]]:
        """Each part that has some of the rows, with their places among these, and their numbers in the part."""
        ends = np.cumsum([part.num_rows for part in self.parts])
        of_part = np.searchsorted(ends, rows, side="right")
        for number in np.unique(of_part):
            part, places = self.parts[number], np.flatnonzero(of_part == number)
            yield part, places, rows[places] - (ends[number] - part.num_rows)

    def evidence(self, row: int) -> RowContribution:
        """The counts of the row's sample.

        Raises:
            DataError: the row cannot be used, or its file cannot be read or has changed.
        """
        return sample_row_counts(row, self.sample(row))

    def lengths(self, rows: Sequence[int] | NDArray[np.int64]) -> RowLengths:
        """How long the rows' samples are. Without `measured`, the rows are tokenized now.

        Raises:
            DataError: a row cannot be used, or its file cannot be read or has changed.
        """
        asked = np.asarray(rows, np.int64)
        found = RowLengths(np.empty_like(asked), np.empty_like(asked))
        for part, places, numbers in self._by_part(asked):
            found.tokens[places], found.squares[places] = part.lengths(numbers)
        return found

    def measured(self, progress: Progress) -> "OnDemandSet":
        """The data set with the lengths of all samples: each row is tokenized once on this machine.

        Its fingerprint covers the lengths, too.

        Raises:
            DataError: a row cannot be used.
        """
        return _joined([part.measured(progress) for part in self.parts], self.notes, is_mixture=bool(self.sets))


def _length_text(lengths: RowLengths, place: int) -> str:
    tokens, squares = int(lengths.tokens[place]), int(lengths.squares[place])
    return f"{counted(tokens, 'token')} ({squares} as the sum of squares)"


def _joined(parts: list[_Part], notes: tuple[str, ...], *, is_mixture: bool) -> OnDemandSet:
    sets = tuple(SetRows(part.make.source.name, part.num_rows, part.fingerprint) for part in parts) * is_mixture
    fingerprint = _digest([tuple(each)[1:] for each in sets]) if is_mixture else parts[0].fingerprint
    return OnDemandSet(parts=tuple(parts), fingerprint=fingerprint, notes=notes, sets=sets)


def _digest(facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()
