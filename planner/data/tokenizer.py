"""Text to token ids: the protocol of all tokenizers, and the tokenizer over bytes, which needs no library."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.data.base import BOUNDARY
from planner.data.examples import (
    ASSISTANT,
    BadRow,
    Conversation,
    Example,
    PlainText,
    PromptCompletions,
    TextOrTurns,
    Turns,
)
from planner.data.samples import Ids

Marks = NDArray[np.bool_]
"""for each token of a sequence, whether it is the assistant's, shape `(n,)`"""


@dataclass(frozen=True, kw_only=True)
class MarkedText:
    """A sequence as text: its pieces in order, each with whether the assistant writes it."""

    pieces: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, kw_only=True)
class PromptText:
    """A prompt as text, up to where the assistant begins, with its completions."""

    prompt: str
    completions: tuple[str, ...]


class Tokenizer(Protocol):
    """Renders a row as text, and turns many texts into tokens at once."""

    @property
    def num_begin(self) -> int:
        """Number of tokens that begin every sequence: 0 or 1."""
        ...

    @property
    def vocabulary(self) -> int | None:
        """The model knows ids in `[0, vocabulary)`. None: all ids of the tokenizer."""
        ...

    @property
    def digest(self) -> str:
        """A digest of everything that the tokens depend on."""
        ...

    def render(self, example: Example, *, is_marked: bool) -> MarkedText | PromptText:
        """Render an example: messages by the chat template, texts unchanged. Unless `is_marked`, all has loss.

        Raises:
            BadRow: the chat template refuses the messages, or does not show which text is the assistant's.
        """
        ...

    def sequences(self, texts: Sequence[MarkedText]) -> list[tuple[Ids, Marks, bool]]:
        """Tokenize each text, with beginning and end token exactly once.

        Returns:
            For each text its ids `(n,)`, its marks `(n,)`, and whether it was tokenized as a whole. It is tokenized
            piece by piece if a token would cross the edge between two pieces.
        """
        ...

    def prompt_completions(self, texts: Sequence[PromptText]) -> list[tuple[Ids, ...]]:
        """For each text: the prompt with a beginning token, `(p,)`, and each completion with an end token, `(k,)`."""
        ...


@dataclass(frozen=True)
class ByteTokenizer:
    """Ids are the bytes of UTF-8. A NUL begins and ends every sequence.

    Messages are lines of `role: content`. Each message of the assistant ends with a NUL:

        <0>user: What is 2 + 2?
        assistant: 4<0>
        user: And 3 + 3?
        assistant: 6<0>
    """

    num_begin: int = 1
    vocabulary: int | None = None
    digest: str = "bytes"

    def render(self, example: Example, *, is_marked: bool) -> MarkedText | PromptText:
        """Render an example. The assistant's text follows `assistant: ` and includes the NUL.

        Raises:
            BadRow: the content of a message is not a text.
        """
        match example:
            case PlainText():
                return MarkedText(pieces=((example.text, True),))
            case Conversation():
                pieces = _pieces(example.messages)
                return MarkedText(pieces=tuple((text, is_assistant or not is_marked) for text, is_assistant in pieces))
            case PromptCompletions():
                completions = tuple(_completion(each) for each in example.completions)
                return PromptText(prompt=_prompt(example.prompt), completions=completions)

    def sequences(self, texts: Sequence[MarkedText]) -> list[tuple[Ids, Marks, bool]]:
        """Tokenize each text as NUL, text, NUL. The last NUL is the assistant's."""
        return [(*self._sequence(marked), True) for marked in texts]

    def _sequence(self, marked: MarkedText) -> tuple[Ids, Marks]:
        pieces = [(BOUNDARY, False), *((text.encode(), is_assistant) for text, is_assistant in marked.pieces)]
        if not pieces[-1][0].endswith(BOUNDARY) or len(pieces) == 1:
            pieces.append((BOUNDARY, True))
        marks = np.repeat([is_assistant for _, is_assistant in pieces], [len(content) for content, _ in pieces])
        return _ids(b"".join(content for content, _ in pieces)), marks

    def prompt_completions(self, texts: Sequence[PromptText]) -> list[tuple[Ids, ...]]:
        """Tokenize each prompt as NUL, prompt, and each completion as completion, NUL."""
        return [
            (
                _ids(BOUNDARY + each.prompt.encode()),
                *(_ids(c.encode().removesuffix(BOUNDARY) + BOUNDARY) for c in each.completions),
            )
            for each in texts
        ]


def _prompt(prompt: TextOrTurns) -> str:
    if isinstance(prompt, str):
        return prompt
    return "".join(text for text, _ in _pieces(prompt)) + f"\n{ASSISTANT}: "


def _completion(completion: TextOrTurns) -> str:
    if isinstance(completion, str):
        return completion
    return "".join(text for text, _ in _pieces(completion)).removeprefix(f"{ASSISTANT}: ")


def _pieces(messages: Turns) -> list[tuple[str, bool]]:
    pieces: list[tuple[str, bool]] = []
    for number, turn in enumerate(messages):
        role, content = turn["role"], turn.get("content")
        if not isinstance(content, str):
            raise BadRow(f"message {number} has no text as content, and models over bytes read only text")
        is_assistant = role == ASSISTANT
        pieces += [("\n" * (number > 0) + f"{role}: ", False), (content + "\0" * is_assistant, is_assistant)]
    return pieces


def _ids(content: bytes) -> Ids:
    return np.frombuffer(content, np.uint8).astype(np.int32)
