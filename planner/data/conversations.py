"""Opens rows of prompts and completions: reads the files, tokenizes once, and returns a sample set."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from planner.data.bad_rows import NO_SKIP, BadRows
from planner.data.base import Progress
from planner.data.examples import BadRow, Example, PlainText, PromptCompletions
from planner.data.hf_tokenizer import HfTokenizer
from planner.data.mixture import repeats, times_used, used_rows
from planner.data.one_format import OneFormat
from planner.data.packing import pack
from planner.data.row import Row
from planner.data.row_files import package_code_digests
from planner.data.rows import open_rows
from planner.data.sample_cache import cached
from planner.data.sample_sets import ChatSet, FeedbackSet, PackedSet, PairSet, SampleSet, joined, samples_digest
from planner.data.samples import Ids
from planner.data.shared_array import SharedArray
from planner.data.source_stamps import row_stamps
from planner.data.tokenizer import ByteTokenizer, MarkedText, Marks, PromptText, Tokenizer
from planner.data.truncation import LengthLimits
from planner.errors import DataError
from planner.job import ChatData, FeedbackData, GptModel, HfModel, PairsData, RowSource

# The tokenizers library uses all cores for one batch.
_ROWS_PER_BATCH = 1000


def open_conversations(
    data: ChatData | PairsData | FeedbackData, model: GptModel | HfModel, progress: Progress
) -> SampleSet:
    """Open, check and tokenize rows of prompts and completions for a model.

    Raises:
        DataError: a file or a row cannot be used. The message names it, with the line or the row's number.
    """
    # First, so that missing files are reported before a tokenizer is downloaded.
    stamps = row_stamps(data)
    tokenizer = tokenizer_of(model)
    code = package_code_digests(Path(file) for file, _, _ in stamps)
    facts = (data.model_dump_json(), model.context, tokenizer.digest, stamps, code)
    num_bytes = sum(size for _, size, _ in stamps)
    make = partial(_tokenized, data, model.context, tokenizer, progress)
    return cached(facts, num_bytes, make, partial(progress, 0, num_bytes))


def tokenizer_of(model: GptModel | HfModel) -> Tokenizer:
    """The tokenizer whose ids the model reads.

    Raises:
        DataError: it cannot be loaded.
    """
    return ByteTokenizer() if isinstance(model, GptModel) else HfTokenizer.load(model)


def _tokenized(
    data: ChatData | PairsData | FeedbackData, context: int, tokenizer: Tokenizer, progress: Progress
) -> SampleSet:
    """The samples of all sets. Each set is tokenized, checked and packed by itself."""
    opened = [open_rows(each, data.kind) for each in data.sets]
    if not data.mixture:
        return _tokenized_set(RowTokenizer(data, data.sets[0], context, tokenizer), opened[0].read(), progress)
    found = [rows.count() for rows in opened]
    named, all_used = [], used_rows(data.sets, found)
    for each, rows, num_rows, used in zip(data.sets, opened, found, all_used, strict=True):
        times = None if used == num_rows else times_used(num_rows, used, data.seed)
        tokenized = _tokenized_set(RowTokenizer(data, each, context, tokenizer), rows.read(times), progress)
        named.append((each.name, tokenized))
    return joined(named, repeats(data.sets, found, all_used))


def _tokenized_set(opening: "RowTokenizer", rows: Iterator[Row], progress: Progress) -> SampleSet:
    while batch := list(islice(rows, _ROWS_PER_BATCH)):
        progress(*batch[0].read)
        opening.add(batch)
    return opening.finish()


@dataclass(frozen=True, kw_only=True)
class _Rendered:
    where: str
    text: MarkedText | PromptText
    is_desirable: bool


class RowTokenizer:
    """Takes rows in order, and collects their samples in arrays."""

    def __init__(
        self,
        data: ChatData | PairsData | FeedbackData,
        source: RowSource,
        context: int,
        tokenizer: Tokenizer,
        one: OneFormat | None = None,
    ) -> None:
        self._data, self._path, self._tokenizer = data, source.path, tokenizer
        self._limits = LengthLimits(context=context, max_prompt=data.max_prompt, side=data.cut_prompt)
        self._tokens, self._ends, self._marks = SharedArray.new("<i4"), SharedArray.new("<i8"), SharedArray.new("?")
        self._end = self._num_rows = self._num_samples = self._num_cut = self._tokens_cut = self._num_apart = 0
        self._format = one or OneFormat(data.kind)
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
        rendered = [each for row in rows for each in self._rendered(row)]
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
            texts = [self._tokenizer.render(each, is_marked=self._is_marked(each)) for each in examples]
        except BadRow as error:
            self.bad_rows.add(row.where, error)
            return []
        desirable = [isinstance(each, PromptCompletions) and each.is_desirable for each in examples]
        return [_Rendered(where=row.where, text=t, is_desirable=d) for t, d in zip(texts, desirable, strict=True)]

    def _examples(self, row: Row) -> list[Example]:
        return self._format.of(row).read(row.fields, self._data.kind)

    def _is_marked(self, example: Example) -> bool:
        """Whether only the assistant's tokens have loss."""
        if not isinstance(self._data, ChatData) or self._data.loss_on == "all":
            return False
        if isinstance(example, PlainText):
            raise DataError.of(
                "data.path",
                f"{self._path!r} holds rows of text, which have no completions for the loss. Write data.loss_on: all",
            )
        return True

    def _require_known(self, *parts: Ids) -> None:
        size = self._tokenizer.vocabulary
        if size is not None and (largest := max(int(part.max(initial=0)) for part in parts)) >= size:
            raise BadRow(
                f"it has token {largest}, and the model knows {size}, from 0. Is it another model's tokenizer?"
            )

    # -- from tokens to samples

    def _keep_marked(self, ids: Ids, marks: Marks, is_whole: bool, *, is_desirable: bool) -> None:
        """Append a conversation. Its prompt is what comes before the assistant's first token."""
        del is_desirable
        self._num_apart += not is_whole
        self._require_known(ids)
        if not len(ids):
            raise BadRow("it has no tokens. Does the chat template write nothing?")
        first = int(marks.argmax())
        num_begin = min(self._tokenizer.num_begin, first)
        self._keep_conversation(ids[:first], ids[first:], marks, num_begin)

    def _keep_completions(self, parts: tuple[Ids, ...], *, is_desirable: bool) -> None:
        self._require_known(*parts)
        prompt, *completions = parts
        if not len(prompt):
            raise BadRow("its prompt is empty, and this tokenizer adds no token at the beginning of a text")
        if isinstance(self._data, ChatData):
            marks = np.full(len(prompt) + len(completions[0]), self._data.loss_on == "all")
            marks[len(prompt) :] = True
            self._keep_conversation(prompt, completions[0], marks, self._tokenizer.num_begin)
            return
        kept = self._limits.completions(prompt, completions, self._tokenizer.num_begin)
        if kept is None:
            raise BadRow(self._gone(len(prompt)))
        if len(kept) == 3 and np.array_equal(kept[1], kept[2]):
            is_same = np.array_equal(completions[0], completions[1])
            raise BadRow(
                "chosen and rejected are the same" + ("" if is_same else f" after the cut to {self._truncation_text}")
            )
        self._append(kept, sum(map(len, parts)))
        if isinstance(self._data, FeedbackData):
            self._marks.append([is_desirable])

    def _keep_conversation(self, prompt: Ids, rest: Ids, marks: Marks, num_begin: int) -> None:
        kept = self._limits.completions(prompt, [rest], num_begin)
        tokens = np.concatenate(kept) if kept else np.empty(0, np.int32)
        # The prompt's marks are all equal, so any of them may be dropped.
        kept_marks = np.concatenate([marks[: len(kept[0])], marks[len(prompt) :]])[: len(tokens)] if kept else marks[:0]
        # From the second token on: the first one is never a label.
        if not kept_marks[1:].any():
            raise BadRow(self._gone(len(prompt)) if marks[1:].any() else "nothing in it is the assistant's")
        self._append((tokens,), len(prompt) + len(rest))
        self._marks.append(kept_marks)

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

    def finish(self) -> SampleSet:
        """The data set of all rows added.

        Raises:
            DataError: rows cannot be used and the job does not skip them, or no row can be used.
        """
        if self.bad_rows.found and (self._data.bad_rows == "refuse" or not self._num_samples):
            raise DataError(self.bad_rows.refusal(self._num_rows))
        if not self._num_samples:
            raise DataError.of("data.path", f"{self._path!r} holds no rows")
        tokens, ends, marks, context = self._tokens, self._ends, self._marks, self._limits.context
        if isinstance(self._data, PairsData):
            digest = samples_digest("pairs", tokens, ends)
            return PairSet(tokens=tokens, ends=ends, context=context, fingerprint=digest, notes=self._notes())
        digest = samples_digest(self._data.kind, tokens, ends, marks)
        conversations = ChatSet(
            tokens=tokens, ends=ends, marks=marks, context=context, fingerprint=digest, notes=self._notes()
        )
        if isinstance(self._data, ChatData):
            return packed(conversations) if self._data.packing else conversations
        return FeedbackSet(**vars(conversations))

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


def packed(conversations: ChatSet) -> PackedSet:
    """The conversations packed into rows of at most `context` inputs."""
    ends = conversations.ends.array
    lengths = np.diff(ends, prepend=0) - 1
    documents, row_ends = SharedArray.new("<i8"), SharedArray.new("<i8")
    chosen, starts = pack(lengths, conversations.context)
    documents.append(chosen)
    row_ends.append(starts[1:])
    num_rows, full = len(starts) - 1, lengths.sum() / ((len(starts) - 1) * conversations.context)
    note = f"{len(lengths)} conversations are packed into {num_rows} rows, which are {full:.1%} full"
    settings = {
        **vars(conversations),
        "fingerprint": samples_digest(f"packed {conversations.fingerprint}", documents, row_ends),
        "notes": (*conversations.notes, note),
    }
    return PackedSet(**settings, packed=documents, row_ends=row_ends)
