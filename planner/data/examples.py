"""What a row means once its columns are understood: a text, a conversation, or a prompt with what may follow it.

A row that cannot be used raises `BadRow` with the reason; whoever reads the file knows the place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Turn = Mapping[str, Any]
Turns = tuple[Turn, ...]
"""messages: `role`, `content`, and what else a chat template reads"""
TextOrTurns = str | Turns

ASSISTANT = "assistant"


class BadRow(Exception):
    """Why a row cannot be used: the end of a sentence that begins with its place."""


@dataclass(frozen=True, kw_only=True)
class PlainText:
    """A text without a prompt."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages, of which the last one is the assistant's."""

    messages: Turns
    settings: Mapping[str, Any] = field(default_factory=dict)
    """what the chat template gets besides"""


@dataclass(frozen=True, kw_only=True)
class PromptCompletions:
    """A prompt, and what may follow it: one completion, or the chosen and the rejected one."""

    prompt: TextOrTurns
    completions: tuple[TextOrTurns, ...]
    is_desirable: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)


Example = PlainText | Conversation | PromptCompletions
