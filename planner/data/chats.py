"""The data of `data.kind: chat`: conversations and texts, packed or not."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.data.base import Progress
from planner.data.examples import Example, PlainText, PromptCompletions
from planner.data.formats import CHAT
from planner.data.lazy_sets import OnDemandSet
from planner.data.packing import pack
from planner.data.row_kinds import open_samples
from planner.data.row_tokenizer import RowTokenizer
from planner.data.sample_sets import ChatSet, PackedSet, SampleSet, samples_digest
from planner.data.samples import Ids
from planner.data.shared_array import SharedArray
from planner.errors import DataError
from planner.job import ChatData, GptModel, HfModel


def open_chats(data: ChatData, model: GptModel | HfModel, progress: Progress) -> SampleSet | OnDemandSet:
    """Open conversations, or prompts with completions. Of a pair, the chosen completion is used.

    Raises:
        DataError: a file or a row cannot be used.
    """
    return open_samples(data, model, progress, ChatRows)


class ChatRows(RowTokenizer):
    """Rows -> conversations."""

    formats = CHAT
    sets = (ChatSet, PackedSet)
    takes_pairs = False
    data: ChatData

    def examples(self, found: Example) -> list[Example]:
        """The example with its first completion."""
        if isinstance(found, PromptCompletions) and len(found.completions) > 1:
            return [replace(found, completions=found.completions[:1])]
        return [found]

    def is_marked(self, example: Example) -> bool:
        """Whether `data.loss_on` asks for the completions alone."""
        if self.data.loss_on == "all":
            return False
        if isinstance(example, PlainText):
            raise DataError.of(
                "data.path",
                f"{self.path!r} holds rows of text, which have no completions for the loss. Write data.loss_on: all",
            )
        return True

    def keep_completions(self, prompt: Ids, completions: Sequence[Ids], *, is_desirable: bool) -> None:
        """Append prompt and completion as a conversation."""
        del is_desirable
        marks = np.full(len(prompt) + len(completions[0]), self.data.loss_on == "all")
        marks[len(prompt) :] = True
        self.append_conversation(prompt, completions[0], marks)

    def make_set(self) -> SampleSet:
        """The conversations."""
        conversations = ChatSet(**self.facts(marks=self.marks))
        return packed(conversations) if self.data.packing else conversations


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
