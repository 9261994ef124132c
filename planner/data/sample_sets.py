"""Data sets of tokenized prompts and completions, with random access."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.data.base import RowContribution, RowLengths, SetRows, sample_row_counts
from planner.data.row_lengths import part_lengths, row_sums, runs, sums_of_sequences
from planner.data.samples import NO_LOSS, Feedback, Ids, Pair, Sample, Text, text_lengths, text_of
from planner.data.shared_array import SharedArray
from planner.errors import DataError


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleSet(ABC):
    """Samples of one kind. All tokens in flat arrays, which loader processes map."""

    tokens: SharedArray
    """int32: the parts of all rows, one after another"""
    ends: SharedArray
    """int64: the end of each part in `tokens`"""
    context: int
    fingerprint: str
    """64 hex digits over the content of the samples. Another tokenizer, template or cut makes other samples."""
    notes: tuple[str, ...]
    """a sentence for each change to rows: left out, cut, packed"""
    sets: tuple[SetRows, ...] = ()
    """the sets of a mixture. Empty if there is only one"""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Number of rows."""

    @property
    def arrays(self) -> dict[str, SharedArray]:
        """The arrays by their names."""
        return {name: value for name, value in vars(self).items() if isinstance(value, SharedArray)}

    @abstractmethod
    def sample(self, row: int) -> Sample:
        """The row's sample."""

    def samples(self, rows: Sequence[int]) -> list[Sample]:
        """The rows' samples."""
        return [self.sample(row) for row in rows]

    def evidence(self, row: int) -> RowContribution:
        """The counts of the row's sample."""
        return sample_row_counts(row, self.sample(row))

    def lengths(self, rows: Sequence[int] | NDArray[np.int64]) -> RowLengths:
        """How long the rows' samples are.

        Raises:
            DataError: a package's class does not say it.
        """
        del rows
        raise DataError.of("batch.max_tokens", f"{type(self).__name__} has no lengths of samples. Remove max_tokens")

    def _part(self, number: int) -> Ids:
        """A writable copy of one part."""
        # A copy: torch warns about memory that cannot be written, and the array is mapped to be read.
        part: Ids = self.tokens.array[_bounds(self.ends, number)].copy()
        return part


def _bounds(ends: SharedArray, number: int) -> slice:
    return slice(int(ends.array[number - 1]) if number else 0, int(ends.array[number]))


def samples_digest(kind: str, *arrays: SharedArray) -> str:
    """SHA-256 over the kind of samples and their arrays: 64 hex digits."""
    digest = hashlib.sha256(f"samples 1 {kind}".encode())
    for mapped in arrays:
        digest.update(f" {mapped.array.dtype.str} {len(mapped.array)} ".encode())
        digest.update(mapped.array.data)
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class ChatSet(SampleSet):
    """Conversations. Each row has one part."""

    marks: SharedArray
    """bool: for each token, whether its prediction has loss"""

    @property
    def num_rows(self) -> int:
        """Number of conversations."""
        return len(self.ends.array)

    def sample(self, row: int) -> Text:
        """The row's conversation."""
        return self._conversation(row)

    def lengths(self, rows: Sequence[int] | NDArray[np.int64]) -> RowLengths:
        """How long the rows' conversations are."""
        return sums_of_sequences(self._conversation_lengths(np.asarray(rows, np.int64)))

    def _conversation_lengths(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The inputs of each conversation, `(n,)`. Its last token is only a label."""
        return part_lengths(self.ends.array, numbers) - 1

    def _conversation(self, number: int) -> Text:
        tokens, marks = self._part(number), self.marks.array[_bounds(self.ends, number)]
        return Text(inputs=tokens[:-1], labels=np.where(marks[1:], tokens[1:], np.int32(NO_LOSS)))


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedSet(ChatSet):
    """Conversations, one or more in a row. Each part is a conversation."""

    packed: SharedArray
    """int64: the numbers of the conversations, row by row"""
    row_ends: SharedArray
    """int64: the end of each row in `packed`"""

    @property
    def num_rows(self) -> int:
        """Number of packed rows."""
        return len(self.row_ends.array)

    def sample(self, row: int) -> Text:
        """Inputs and labels of the row's conversations, concatenated, with their document numbers."""
        texts = [self._conversation(int(number)) for number in self.packed.array[_bounds(self.row_ends, row)]]
        return Text(
            inputs=np.concatenate([text.inputs for text in texts]),
            labels=np.concatenate([text.labels for text in texts]),
            documents=np.repeat(np.arange(len(texts), dtype=np.int32), [len(text.inputs) for text in texts]),
        )

    def lengths(self, rows: Sequence[int] | NDArray[np.int64]) -> RowLengths:
        """How long the rows are. Each of their conversations is a document."""
        numbers = np.asarray(rows, np.int64)
        counts = part_lengths(self.row_ends.array, numbers)
        places = runs(self.row_ends.array[numbers] - counts, counts)
        return row_sums(self._conversation_lengths(self.packed.array[places]), counts)


@dataclass(frozen=True, kw_only=True, eq=False)
class PairSet(SampleSet):
    """Pairs. A row has three parts: the prompt, its chosen and its rejected completion."""

    @property
    def num_rows(self) -> int:
        """Number of pairs."""
        return len(self.ends.array) // 3

    def sample(self, row: int) -> Pair:
        """The row's pair."""
        prompt, chosen, rejected = (self._part(3 * row + i) for i in range(3))
        return Pair(chosen=text_of(prompt, chosen, self.context), rejected=text_of(prompt, rejected, self.context))

    def lengths(self, rows: Sequence[int] | NDArray[np.int64]) -> RowLengths:
        """How long the rows' pairs are: both completions, each with the prompt."""
        first = 3 * np.asarray(rows, np.int64)
        prompt, chosen, rejected = (part_lengths(self.ends.array, first + i) for i in range(3))
        return sums_of_sequences(*(text_lengths(prompt, each, self.context) for each in (chosen, rejected)))


@dataclass(frozen=True, kw_only=True, eq=False)
class FeedbackSet(SampleSet):
    """Labelled completions. A row has two parts: the prompt and its completion."""

    marks: SharedArray
    """bool: for each row, whether its completion is desirable"""

    @property
    def num_rows(self) -> int:
        """Number of completions."""
        return len(self.marks.array)

    def sample(self, row: int) -> Feedback:
        """The row's completion with its prompt and label."""
        prompt, completion = self._part(2 * row), self._part(2 * row + 1)
        text = text_of(prompt, completion, self.context)
        return Feedback(text=text, is_desirable=bool(self.marks.array[row]), prompt=prompt, context=self.context)

    def lengths(self, rows: Sequence[int] | NDArray[np.int64]) -> RowLengths:
        """How long the rows' own completions are, with their prompts. Mismatched sequences do not count."""
        first = 2 * np.asarray(rows, np.int64)
        prompt, completion = (part_lengths(self.ends.array, first + i) for i in range(2))
        return sums_of_sequences(text_lengths(prompt, completion, self.context))


# What the values of an array count. They are shifted by those of the sets before.
_COUNTS = {"ends": "tokens", "packed": "ends", "row_ends": "packed"}


def joined(named: Sequence[tuple[str, SampleSet]], notes: tuple[str, ...] = ()) -> SampleSet:
    """A mixture: the rows of all sets, one set after another.

    Args:
        named: each set with its name. All are of one class and have one context.
        notes: of the mixture, before those of the sets.
    """
    first = named[0][1]
    arrays = {name: SharedArray.new(kept.array.dtype.str) for name, kept in first.arrays.items()}
    lengths = dict.fromkeys(arrays, 0)
    for _, each in named:
        shifts = {name: lengths[counted] for name, counted in _COUNTS.items() if name in arrays}
        for name, kept in each.arrays.items():
            arrays[name].append(kept.array + shifts[name] if name in shifts else kept.array)
            lengths[name] += len(kept.array)
    sets = tuple(SetRows(name, each.num_rows, each.fingerprint) for name, each in named)
    fields: dict[str, Any] = {
        **arrays,
        "context": first.context,
        # Without the names: the same samples at another path are the same data.
        "fingerprint": hashlib.sha256(repr([tuple(each)[1:] for each in sets]).encode()).hexdigest(),
        "notes": (*notes, *(f"{name}: {note}" for name, each in named for note in each.notes)),
        "sets": sets,
    }
    return type(first)(**fields)
