"""Data sets of prompts and completions whose rows are tokenized when a step needs them (`data.tokenize: on_demand`).

Opening one finds where its rows are, and tokenizes some of them as a check. The samples and their numbers are those of
rows that are tokenized ahead.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.data.ahead_sets import tokenizer_of
from planner.data.base import Progress, RowContribution, RowLengths, SetRows, sample_row_counts
from planner.data.mixture import repeats, times_used, used_rows
from planner.data.one_format import OneFormat
from planner.data.row import Row
from planner.data.row_access import RowAccess, open_access
from planner.data.row_tokenizer import RowTokenizer, unequal_samples
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

    @property
    def num_rows(self) -> int:
        """Number of samples."""
        return self.num_used * self.per_row

    def samples(self, numbers: NDArray[np.int64]) -> list[Sample]:
        """The samples with these numbers.

        Raises:
            DataError: a row cannot be used or read any more.
        """
        used, number_in_row = np.divmod(numbers, self.per_row)
        rows = (self.chosen.array[used] if self.chosen else used).tolist()
        tokenized = self.make.rows(self.access.rows(rows))
        if tokenized.bad_rows.found:
            raise self._refusal(rows)
        made = tokenized.finish()
        if tokenized.samples_of_each() != self.per_row:
            raise unequal_samples(self.access.where(rows[0]))
        return [made.sample(i * self.per_row + int(part)) for i, part in enumerate(number_in_row)]

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
        ends = np.cumsum([part.num_rows for part in self.parts])
        of_part = np.searchsorted(ends, asked, side="right")
        made: dict[int, Sample] = {}
        for number in np.unique(of_part):
            part = self.parts[number]
            places = np.flatnonzero(of_part == number)
            samples = part.samples(asked[places] - (ends[number] - part.num_rows))
            made.update(zip(places.tolist(), samples, strict=True))
        return [made[place] for place in range(len(asked))]

    def evidence(self, row: int) -> RowContribution:
        """The counts of the row's sample.

        Raises:
            DataError: the row cannot be used, or its file cannot be read or has changed.
        """
        return sample_row_counts(row, self.sample(row))

    def lengths(self, rows: Sequence[int] | NDArray[np.int64]) -> RowLengths:
        """Not known: a row's sample is as long as its tokens.

        Raises:
            DataError: always.
        """
        del rows
        raise DataError.of(
            "data.tokenize",
            "on_demand does not know how long a sample is before it is tokenized. Write tokenize: ahead, or remove "
            "batch.max_tokens",
        )


def _joined(parts: list[_Part], notes: tuple[str, ...], *, is_mixture: bool) -> OnDemandSet:
    sets = tuple(SetRows(part.make.source.name, part.num_rows, part.fingerprint) for part in parts) * is_mixture
    fingerprint = _digest([tuple(each)[1:] for each in sets]) if is_mixture else parts[0].fingerprint
    return OnDemandSet(parts=tuple(parts), fingerprint=fingerprint, notes=notes, sets=sets)


def _digest(facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()
