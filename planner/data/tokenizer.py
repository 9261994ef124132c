"""From words to token ids: what every tokenizer answers, and the one over bytes, which needs no library."""

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
"""of a sequence's tokens: which are the assistant's, shape `(n,)`"""


@dataclass(frozen=True, kw_only=True)
class MarkedText:
    """A sequence as text: its pieces in order, each with whether the assistant writes it."""

    pieces: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, kw_only=True)
class PromptText:
    """A prompt as text, up to where the assistant goes on, and what may follow there."""

    prompt: str
    completions: tuple[str, ...]


class Tokenizer(Protocol):
    """Renders a row into text, and turns many texts into tokens at once."""

    @property
    def num_begin(self) -> int:
        """Tokens that it begins every sequence with: 0 or 1."""
        ...

    @property
    def vocabulary(self) -> int | None:
        """Ids that the model knows are `[0, vocabulary)`; None: all that the tokenizer has."""
        ...

    @property
    def digest(self) -> str:
        """Of all that its answers depend on."""
        ...

    def render(self, example: Example, *, is_marked: bool) -> MarkedText | PromptText:
        """Messages in their chat template, texts as they are. Without marks, all is taken for the assistant's.

        Raises:
            BadRow: the chat template refuses the messages, or what is the assistant's cannot be told.
        """
        ...

    def sequences(self, scripts: Sequence[MarkedText]) -> list[tuple[Ids, Marks, bool]]:
        """Each with its beginning and its end, both exactly once: ids and marks of shape `(n,)`.

        And whether its tokens are those of its whole text: not where one would run over from one piece into another.
        """
        ...

    def exchanges(self, exchanges: Sequence[PromptText]) -> list[tuple[Ids, ...]]:
        """Of each the prompt with its beginning, `(p,)`, and every completion with its end, `(k,)`."""
        ...


@dataclass(frozen=True)
class ByteTokenizer:
    """Ids are the bytes of UTF-8; a NUL begins every sequence and ends it.

    Messages are lines of `role: content`, and every one of the assistant's ends with a NUL:

        <0>user: What is 2 + 2?
        assistant: 4<0>
        user: And 3 + 3?
        assistant: 6<0>
    """

    num_begin: int = 1
    vocabulary: int | None = None
    digest: str = "bytes"

    def render(self, example: Example, *, is_marked: bool) -> MarkedText | PromptText:
        """The assistant's is what stands behind `assistant: `, each NUL included.

        Raises:
            BadRow: a message's content is no text.
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

    def sequences(self, scripts: Sequence[MarkedText]) -> list[tuple[Ids, Marks, bool]]:
        """NUL, text, NUL; the last one is the assistant's."""
        return [(*self._sequence(script), True) for script in scripts]

    def _sequence(self, script: MarkedText) -> tuple[Ids, Marks]:
        pieces = [(BOUNDARY, False), *((text.encode(), is_assistant) for text, is_assistant in script.pieces)]
        if not pieces[-1][0].endswith(BOUNDARY) or len(pieces) == 1:
            pieces.append((BOUNDARY, True))
        marks = np.repeat([is_assistant for _, is_assistant in pieces], [len(content) for content, _ in pieces])
        return _ids(b"".join(content for content, _ in pieces)), marks

    def exchanges(self, exchanges: Sequence[PromptText]) -> list[tuple[Ids, ...]]:
        """NUL and prompt; each completion and NUL."""
        return [
            (
                _ids(BOUNDARY + each.prompt.encode()),
                *(_ids(c.encode().removesuffix(BOUNDARY) + BOUNDARY) for c in each.completions),
            )
            for each in exchanges
        ]


def _prompt(words: TextOrTurns) -> str:
    if isinstance(words, str):
        return words
    return "".join(text for text, _ in _pieces(words)) + f"\n{ASSISTANT}: "


def _completion(words: TextOrTurns) -> str:
    if isinstance(words, str):
        return words
    return "".join(text for text, _ in _pieces(words)).removeprefix(f"{ASSISTANT}: ")


def _pieces(messages: Turns) -> list[tuple[str, bool]]:
    pieces: list[tuple[str, bool]] = []
    for number, turn in enumerate(messages):
        role, content = turn["role"], turn.get("content")
        if not isinstance(content, str):
            raise BadRow(f"message {number} has a content that is no text, and models over bytes read nothing else")
        is_assistant = role == ASSISTANT
        pieces += [("\n" * (number > 0) + f"{role}: ", False), (content + "\0" * is_assistant, is_assistant)]
    return pieces


def _ids(content: bytes) -> Ids:
    return np.frombuffer(content, np.uint8).astype(np.int32)
