"""Rows of prompts and completions -> samples: rendered, tokenized, checked, cut, and collected in arrays."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np

from planner.base.text import counted
from planner.base.user_errors import code_error
from planner.data.bad_rows import NO_SKIP, BadRows
from planner.data.examples import BadRow, Example, PromptCompletions
from planner.data.formats import RowFormat
from planner.data.one_format import OneFormat
from planner.data.row import Row
from planner.data.row_files import code_digest
from planner.data.sample_sets import SampleSet, samples_digest
from planner.data.samples import Ids
from planner.data.shared_array import SharedArray
from planner.data.tokenizer import MarkedText, Marks, PromptText, Tokenizer
from planner.data.truncation import LengthLimits
from planner.errors import DataError, PlannerError
from planner.job import RowsData

# Modules whose code is in the digest of the cache, or is Python's own.
_OURS = ("planner.", "abc", "builtins")


def unequal_samples(*rows: str) -> DataError:
    """The error for rows, each named by its place, that give another number of samples than others."""
    named = " and ".join(rows[:2])
    return DataError.of(
        "data.tokenize",
        f"on_demand needs the same number of samples of each row, and it is another for {named}. Write tokenize: ahead",
    )


@dataclass(frozen=True, kw_only=True)
class _Rendered:
    where: str
    text: MarkedText | PromptText
    is_desirable: bool


class RowTokenizer(ABC):
    """Takes rows in order, and collects their samples in arrays. Each kind of rows has a subclass."""

    formats: ClassVar[tuple[RowFormat, ...]]
    """the shapes of rows that it accepts. The first match wins"""
    sets: ClassVar[tuple[type[SampleSet], ...]]
    """the classes of data sets that it makes"""
    takes_pairs: ClassVar[bool] = True
    """whether a named loader makes pairs of a prompt's completions. Else it chooses one"""

    def __init__(
        self,
        data: RowsData,
        path: str,
        context: int,
        tokenizer: Tokenizer,
        one: OneFormat | None = None,
    ) -> None:
        self.data, self.path, self._tokenizer = data, path, tokenizer
        self._limits = LengthLimits(context=context, max_prompt=data.max_prompt, side=data.cut_prompt)
        self._tokens, self._ends, self.marks = SharedArray.new("<i4"), SharedArray.new("<i8"), SharedArray.new("?")
        self._samples_of_rows: dict[int, str] = {}  # how many -> a row that gives so many
        self._end = self._num_rows = self._num_samples = self._num_cut = self._tokens_cut = self._num_apart = 0
        self._format = one or OneFormat(data.kind, self.formats)
        self.bad_rows = (
            BadRows(what="rows that were tried", instead=NO_SKIP) if data.tokenize == "on_demand" else BadRows()
        )

    # -- from rows to tokens

    def add(self, rows: list[Row]) -> None:
        """Render, tokenize, cut and append rows.

        Raises:
            DataError: rows are of several formats.
        """
        self._num_rows += len(rows)
        by_row = [self._rendered(row) for row in rows]
        self._samples_of_rows |= {len(found): row.where for row, found in zip(rows, by_row, strict=True)}
        rendered = [each for found in by_row for each in found]
        # All rows have one format, so one of the two lists is empty.
        marked = [each.text for each in rendered if isinstance(each.text, MarkedText)]
        prompts = [each.text for each in rendered if isinstance(each.text, PromptText)]
        keeps = [
            *(partial(self._keep_marked, *found) for found in self._tokenizer.sequences(marked)),
            *(partial(self._keep_completions, found) for found in self._tokenizer.prompt_completions(prompts)),
        ]
        for each, keep in zip(rendered, keeps, strict=True):
            try:
                keep(is_desirable=each.is_desirable)
            except BadRow as error:
                self.bad_rows.add(each.where, error)

    def _rendered(self, row: Row) -> list[_Rendered]:
        """The row's examples as text: none for a bad row, two for a pair used as feedback."""
        try:
            examples = self._examples(row)
            texts = [self._tokenizer.render(each, is_marked=self.is_marked(each)) for each in examples]
        except BadRow as error:
            self.bad_rows.add(row.where, error)
            return []
        desirable = [isinstance(each, PromptCompletions) and each.is_desirable for each in examples]
        return [_Rendered(where=row.where, text=t, is_desirable=d) for t, d in zip(texts, desirable, strict=True)]

    def _examples(self, row: Row) -> list[Example]:
        try:
            return self.examples(self._format.of(row).read(row.fields))
        except (BadRow, PlannerError):
            raise
        except Exception as error:  # the code of another package may raise anything
            if not self.code_of_package():
                raise
            raise DataError(
                f"{row.where}: the code of data.kind {self.data.kind} fails: {code_error(error).text}"
            ) from error

    # -- what a kind of rows decides

    @classmethod
    @cache
    def code_of_package(cls) -> tuple[str, ...]:
        """SHA-256 of each file of another package that has a part of this class. Other code may make other samples."""
        return tuple(sorted({code_digest(part) for part in cls.__mro__ if not part.__module__.startswith(_OURS)}))

    def examples(self, found: Example) -> list[Example]:
        """The examples that a row gives, each of which is a sample."""
        return [found]

    def is_marked(self, example: Example) -> bool:
        """Whether only the assistant's tokens of an example have loss."""
        del example
        return False

    @abstractmethod
    def keep_completions(self, prompt: Ids, completions: Sequence[Ids], *, is_desirable: bool) -> None:
        """Append the sample of a prompt with its completions.

        Raises:
            BadRow: it cannot be used.
        """

    @abstractmethod
    def make_set(self) -> SampleSet:
        """The data set of all samples."""

    # -- from tokens to samples

    def _require_known(self, *parts: Ids) -> None:
        size = self._tokenizer.vocabulary
        if size is not None and (largest := max(int(part.max(initial=0)) for part in parts)) >= size:
            raise BadRow(
                f"it has token {largest}, and the model knows {size}, from 0. Is it another model's tokenizer?"
            )

    def _keep_marked(self, ids: Ids, marks: Marks, is_whole: bool, *, is_desirable: bool) -> None:
        """Append a conversation. Its prompt is what comes before the assistant's first token."""
        del is_desirable
        self._num_apart += not is_whole
        self._require_known(ids)
        if not len(ids):
            raise BadRow("it has no tokens. Does the chat template write nothing?")
        first = int(marks.argmax())
        num_begin = min(self._tokenizer.num_begin, first)
        self.append_conversation(ids[:first], ids[first:], marks, num_begin)

    def _keep_completions(self, parts: tuple[Ids, ...], *, is_desirable: bool) -> None:
        self._require_known(*parts)
        prompt, *completions = parts
        if not len(prompt):
            raise BadRow("its prompt is empty, and this tokenizer adds no token at the beginning of a text")
        self.keep_completions(prompt, completions, is_desirable=is_desirable)

    def append_completions(self, prompt: Ids, completions: Sequence[Ids]) -> None:
        """Append a prompt and its completions as one part each, cut to the context.

        Raises:
            BadRow: nothing of a completion is left, or two are the same.
        """
        kept = self._limits.completions(prompt, completions, self._tokenizer.num_begin)
        if kept is None:
            raise BadRow(self._gone(len(prompt)))
        if len(kept) == 3 and np.array_equal(kept[1], kept[2]):
            is_same = np.array_equal(completions[0], completions[1])
            raise BadRow(
                "chosen and rejected are the same" + ("" if is_same else f" after the cut to {self._truncation_text}")
            )
        self._append(kept, len(prompt) + sum(map(len, completions)))

    def append_conversation(self, prompt: Ids, rest: Ids, marks: Marks, num_begin: int | None = None) -> None:
        """Append a conversation, cut to the context.

        Args:
            prompt: ids before the first that has loss, `(p,)`.
            rest: the others, `(k,)`.
            marks: whether each has loss, `(p + k,)`.
            num_begin: ids at the beginning that are never cut. None: those that the tokenizer begins texts with.

        Raises:
            BadRow: nothing of it has loss.
        """
        num_begin = self._tokenizer.num_begin if num_begin is None else num_begin
        kept = self._limits.completions(prompt, [rest], num_begin)
        tokens = np.concatenate(kept) if kept else np.empty(0, np.int32)
        # The prompt's marks are all equal, so any of them may be dropped.
        kept_marks = np.concatenate([marks[: len(kept[0])], marks[len(prompt) :]])[: len(tokens)] if kept else marks[:0]
        # From the second token on: the first one is never a label.
        if not kept_marks[1:].any():
            raise BadRow(self._gone(len(prompt)) if marks[1:].any() else "nothing in it is the assistant's")
        self._append((tokens,), len(prompt) + len(rest))
        self.marks.append(kept_marks)

    @property
    def _truncation_text(self) -> str:
        return f"model.context: {self._limits.context} tokens"

    def _gone(self, prompt_length: int) -> str:
        return (
            f"its prompt of {prompt_length} tokens leaves nothing of the completion within {self._truncation_text}. "
            "Set data.max_prompt, or raise model.context"
        )

    def _append(self, parts: tuple[Ids, ...], num_tokens: int) -> None:
        for part in parts:
            self._tokens.append(part)
            self._end += len(part)
            self._ends.append([self._end])
        self._num_samples += 1
        if (num_cut := num_tokens - sum(map(len, parts))) > 0:
            self._num_cut += 1
            self._tokens_cut += num_cut

    # -- the whole

    def samples_of_each(self) -> int:
        """How many samples each row added gives. A row on demand is found by that number.

        Raises:
            DataError: the rows give different numbers.
        """
        if len(self._samples_of_rows) > 1:
            raise unequal_samples(*self._samples_of_rows.values())
        return next(iter(self._samples_of_rows))

    def finish(self) -> SampleSet:
        """The data set of all rows added.

        Raises:
            DataError: rows cannot be used and the job does not skip them, or no row can be used.
        """
        if self.bad_rows.found and (self.data.bad_rows == "refuse" or not self._num_samples):
            raise DataError(self.bad_rows.refusal(self._num_rows))
        if not self._num_samples:
            found = f"{counted(self._num_rows, 'row')} and no sample of them" if self._num_rows else "no rows"
            raise DataError.of("data.path", f"{self.path!r} holds {found}")
        return self.make_set()

    def facts(self, **arrays: SharedArray) -> dict[str, Any]:
        """The fields that all data sets have, of samples with these arrays beside `tokens` and `ends`."""
        parts = {"tokens": self._tokens, "ends": self._ends, **arrays}
        digest = samples_digest(self.data.kind, *parts.values())
        return {**parts, "context": self._limits.context, "fingerprint": digest, "notes": self._notes()}

    def _notes(self) -> tuple[str, ...]:
        notes = [self.bad_rows.note(self._num_rows)] if self.bad_rows.found else []
        if self._num_apart:
            notes.append(
                f"{self._num_apart} of {self._num_rows} conversations are tokenized piece by piece, because a token of "
                "the whole text would cross the edge between the assistant's text and other text"
            )
        if self._num_cut:
            num_tokens = self._tokens_cut + self._end
            notes.append(
                f"{self._num_cut} of {self._num_samples} samples were cut to {self._truncation_text}. "
                f"{self._tokens_cut} of {num_tokens} tokens are left out"
            )
        return tuple(notes)
