"""The meaning of a row: a text, a conversation, or a prompt with its completions. Made by `planner.data.formats`.

A row that cannot be used raises `BadRow` with the reason. The reader of the file adds the place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Turn = Mapping[str, Any]
Turns = tuple[Turn, ...]
"""messages with `role`, `content` and other keys that a chat template reads"""
TextOrTurns = str | Turns

ASSISTANT = "assistant"


class BadRow(Exception):
    """Why a row cannot be used. The message follows the place of the row: `rows.jsonl:3: prompt is missing`."""


@dataclass(frozen=True, kw_only=True)
class PlainText:
    """A text without a prompt."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages. The last one is the assistant's."""

    messages: Turns
    settings: Mapping[str, Any] = field(default_factory=dict)
    """other variables for the chat template"""


@dataclass(frozen=True, kw_only=True)
class PromptCompletions:
    """A prompt with one completion, or with the chosen and the rejected one."""

    prompt: TextOrTurns
    completions: tuple[TextOrTurns, ...]
    is_desirable: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)


Example = PlainText | Conversation | PromptCompletions
