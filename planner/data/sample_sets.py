"""Rows of prompts and completions as token ids, ready to be asked for in any order."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from planner.data.base import RowCounts, sample_evidence
from planner.data.columns import MappedArray
from planner.data.samples import NO_LOSS, Feedback, Ids, Pair, Sample, Text, text_of


@dataclass(frozen=True, kw_only=True, eq=False)
class _SampleSet(ABC):
    """All tokens once, in flat columns, which the loader processes map."""

    tokens: MappedArray
    """int32: the parts of all rows, one after another"""
    ends: MappedArray
    """int64: where each part ends in that"""
    context: int
    fingerprint: str
    """over what the samples hold and nothing else: another tokenizer, template or cut makes other samples"""
    notes: tuple[str, ...]
    """what became of the rows, where not all of them are here as they were: left out, cut, packed"""

    @abstractmethod
    def sample(self, row: int) -> Sample:
        """The row's sample."""

    def evidence(self, row: int) -> RowCounts:
        """Of the row's sample."""
        return sample_evidence(row, self.sample(row))

    def _part(self, number: int) -> Ids:
        """A copy, which may be written to."""
        part: Ids = self.tokens.array[_bounds(self.ends, number)].copy()
        return part


def _bounds(ends: MappedArray, number: int) -> slice:
    return slice(int(ends.array[number - 1]) if number else 0, int(ends.array[number]))


def samples_digest(kind: str, *columns: MappedArray) -> str:
    """SHA-256 over the kind of samples and all that they hold: 64 hex digits."""
    digest = hashlib.sha256(f"samples 1 {kind}".encode())
    for column in columns:
        digest.update(f" {column.array.dtype.str} {len(column.array)} ".encode())
        digest.update(column.array.data)
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True, eq=False)
class ChatSet(_SampleSet):
    """A part is a conversation, and so is a row."""

    marks: MappedArray
    """bool: of each token, whether predicting it bears loss"""

    @property
    def num_rows(self) -> int:
        """Conversations."""
        return len(self.ends.array)

    def sample(self, row: int) -> Text:
        """The conversation."""
        return self._conversation(row)

    def _conversation(self, number: int) -> Text:
        tokens, marks = self._part(number), self.marks.array[_bounds(self.ends, number)]
        return Text(inputs=tokens[:-1], labels=np.where(marks[1:], tokens[1:], np.int32(NO_LOSS)))


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedSet(ChatSet):
    """A part is a conversation, and a row holds one or more."""

    packed: MappedArray
    """int64: the numbers of the conversations, row by row"""
    row_ends: MappedArray
    """int64: where each row ends in that"""

    @property
    def num_rows(self) -> int:
        """Packed rows."""
        return len(self.row_ends.array)

    def sample(self, row: int) -> Text:
        """Inputs and labels of each conversation as they are alone, one after another, and whose they are."""
        texts = [self._conversation(int(number)) for number in self.packed.array[_bounds(self.row_ends, row)]]
        return Text(
            inputs=np.concatenate([text.inputs for text in texts]),
            labels=np.concatenate([text.labels for text in texts]),
            documents=np.repeat(np.arange(len(texts), dtype=np.int32), [len(text.inputs) for text in texts]),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class PairSet(_SampleSet):
    """Parts are a prompt, its chosen and its rejected completion, in turn."""

    @property
    def num_rows(self) -> int:
        """Pairs."""
        return len(self.ends.array) // 3

    def sample(self, row: int) -> Pair:
        """The pair."""
        prompt, chosen, rejected = (self._part(3 * row + i) for i in range(3))
        return Pair(chosen=text_of(prompt, chosen, self.context), rejected=text_of(prompt, rejected, self.context))


@dataclass(frozen=True, kw_only=True, eq=False)
class FeedbackSet(_SampleSet):
    """Parts are a prompt and its completion, in turn."""

    marks: MappedArray
    """bool: of each row, whether its completion is desirable"""

    @property
    def num_rows(self) -> int:
        """Completions."""
        return len(self.marks.array)

    def sample(self, row: int) -> Feedback:
        """The completion with its prompt."""
        prompt, completion = self._part(2 * row), self._part(2 * row + 1)
        text = text_of(prompt, completion, self.context)
        return Feedback(text=text, is_desirable=bool(self.marks.array[row]), prompt=prompt)


SampleSet = ChatSet | PackedSet | PairSet | FeedbackSet
