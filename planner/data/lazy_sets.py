"""Data sets of prompts and completions whose rows are tokenized when a step needs them (`data.tokenize: on_demand`).

Opening one finds where its rows are, and tokenizes some of them as a check. The samples and their numbers are those of
rows that are tokenized ahead. With `batch.max_tokens`, all rows are tokenized once at the start, and only the lengths
are kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.data.ahead_sets import tokenizer_of
from planner.data.base import Progress, RowContribution, RowLengths, SetRows, sample_row_counts
from planner.data.lazy_rows import LazyRows, SampleMaker, facts_digest
from planner.data.mixture import repeats, times_used, used_rows
from planner.data.one_format import OneFormat
from planner.data.row_access import open_access
from planner.data.row_tokenizer import RowTokenizer
from planner.data.samples import Sample
from planner.data.shared_array import SharedArray
from planner.data.source_stamps import row_stamps
from planner.job import GptModel, HfModel, RowsData

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
        make = SampleMaker(
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
            LazyRows(
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
class OnDemandSet:
    """Samples that are made when they are asked for. The rows of a mixture's sets follow one another."""

    parts: tuple[LazyRows, ...]
    fingerprint: str
    """64 hex digits over the content of the files, the tokenizer, all settings that samples depend on, and lengths that
    are kept"""
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

    def _by_part(self, rows: NDArray[np.int64]) -> Iterator[tuple[LazyRows, NDArray[np.int64], NDArray[np.int64]]]:
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


def _joined(parts: list[LazyRows], notes: tuple[str, ...], *, is_mixture: bool) -> OnDemandSet:
    sets = tuple(SetRows(part.make.source.name, part.num_rows, part.fingerprint) for part in parts) * is_mixture
    fingerprint = facts_digest([tuple(each)[1:] for each in sets]) if is_mixture else parts[0].fingerprint
    return OnDemandSet(parts=tuple(parts), fingerprint=fingerprint, notes=notes, sets=sets)
