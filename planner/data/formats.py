"""What people's rows look like, and what is in them: HALOs' JSON by `type`, TRL's columns by their names.

A row that cannot be used raises `BadRow` with the reason; whoever reads the file knows the place.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from planner.data.json_types import json_type

Kind = Literal["chat", "pairs", "feedback"]
Turn = Mapping[str, Any]
Turns = tuple[Turn, ...]
"""messages: `role`, `content`, and what else a chat template reads"""
Words = str | Turns

ASSISTANT = "assistant"


class BadRow(Exception):
    """Why a row cannot be used: the end of a sentence that begins with its place."""


@dataclass(frozen=True, kw_only=True)
class Plain:
    """A text without a prompt."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages, of which the last one is the assistant's."""

    messages: Turns
    settings: Mapping[str, Any] = field(default_factory=dict)
    """what the chat template gets besides"""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A prompt, and what may follow it: one completion, or the chosen and the rejected one."""

    prompt: Words
    completions: tuple[Words, ...]
    is_desirable: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)


Example = Plain | Conversation | Answered
Fields = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A shape of rows."""

    name: str
    """its keys, in the words of an error"""
    halos: str = ""
    """HALOs' `type`; empty: TRL's"""
    keys: tuple[str, ...]
    read: Callable[[Fields, Kind], list[Example]]

    def fits(self, fields: Fields) -> bool:
        """Whether a row has this shape, by its keys."""
        return (fields.get("type") == self.halos if self.halos else True) and all(key in fields for key in self.keys)


def format_of(fields: Fields, kind: Kind) -> Format:
    """The shape of a row, among those that the kind of data takes.

    Raises:
        BadRow: none of them.
    """
    for found in _FORMATS[kind]:
        if found.fits(fields):
            return found
    if fields.get("type") == "scalar_feedback" and "reward" in fields:
        raise BadRow(
            "scalar_feedback, whose reward no objective here learns from; turn it into binary_feedback by a threshold"
        )
    if "conversations" in fields:
        raise BadRow(
            "conversations, as ShareGPT has them, which are not read; write them as messages: role (system, user, "
            "assistant) for from (system, human, gpt), content for value"
        )
    other = next((each for formats in _FORMATS.values() for each in formats if each.fits(fields)), None)
    words = other.name if other else f"the keys {', '.join(sorted(map(str, fields))[:8]) or '(none)'}"
    raise BadRow(f"{words}, and data.kind {kind} takes one of: {'; '.join(each.name for each in _FORMATS[kind])}")


def _rated(row: Fields, _kind: Kind) -> list[Example]:
    """TRL's completion, or HALOs' output."""
    words = _completion_of(row, "output" if _HALOS_BINARY.fits(row) else "completion")
    return [_answered(_words(row, "prompt"), (words,), row, is_desirable=_truth(row, "label"))]


# -- TRL's


def _messages(row: Fields, _kind: Kind) -> list[Example]:
    messages = _turns(row, "messages")
    _require_assistant_last(messages, "messages")
    return [Conversation(messages=messages, settings=_settings(row))]


def _text(row: Fields, _kind: Kind) -> list[Example]:
    return [Plain(text=_string(row, "text"))]


def _completion(row: Fields, _kind: Kind) -> list[Example]:
    if "label" in row:
        raise BadRow(
            "a label beside prompt and completion: undesirable ones are nothing to imitate; take the label out"
        )
    return [_answered(_words(row, "prompt"), (_completion_of(row, "completion"),), row)]


def _preference(row: Fields, kind: Kind) -> list[Example]:
    chosen, rejected = _words(row, "chosen"), _words(row, "rejected")
    prompt: Words
    if isinstance(chosen, str) and isinstance(rejected, str):
        if "prompt" not in row:
            raise BadRow("chosen and rejected are texts, and where their prompt ends cannot be told; add prompt")
        prompt = _string(row, "prompt")
    elif isinstance(chosen, str) or isinstance(rejected, str):
        raise BadRow("one of chosen and rejected is a text, and the other messages; write both alike")
    elif isinstance(row.get("prompt", ""), str):
        # A text beside messages repeats their first words (UltraFeedback): what both begin with is the prompt.
        prompt, chosen, rejected = _common_beginning(chosen, rejected)
    else:
        prompt = _turns(row, "prompt")
    for key, words in (("chosen", chosen), ("rejected", rejected)):
        _require_completion(words, key)
    return _of_pair(prompt, chosen, rejected, row, kind)


def _common_beginning(chosen: Turns, rejected: Turns) -> tuple[Turns, Turns, Turns]:
    """What both conversations begin with, and how each goes on; the last message is never of the prompt."""
    most = min(len(chosen), len(rejected)) - 1
    length = next((i for i in range(most) if chosen[i] != rejected[i]), max(most, 0))
    if not length:
        raise BadRow("chosen and rejected have no common beginning that could be their prompt; add prompt as messages")
    return chosen[:length], chosen[length:], rejected[length:]


# -- HALOs'


def _sample(row: Fields, _kind: Kind) -> list[Example]:
    return [_answered(_words(row, "prompt"), (_completion_of(row, "output"),), row)]


def _pairwise_feedback(row: Fields, kind: Kind) -> list[Example]:
    a, b = _completion_of(row, "output_A"), _completion_of(row, "output_B")
    chosen, rejected = (a, b) if _truth(row, "label") else (b, a)
    return _of_pair(_words(row, "prompt"), chosen, rejected, row, kind)


_HALOS_SAMPLE = Format(name="HALOs' type: sample", halos="sample", keys=("prompt", "output"), read=_sample)
_HALOS_BINARY = Format(
    name="HALOs' type: binary_feedback",
    halos="binary_feedback",
    keys=("prompt", "output", "label"),
    read=_rated,
)
_HALOS_PAIRWISE = Format(
    name="HALOs' type: pairwise_feedback",
    halos="pairwise_feedback",
    keys=("prompt", "output_A", "output_B", "label"),
    read=_pairwise_feedback,
)
_PREFERENCE = Format(name="chosen, rejected (and prompt)", keys=("chosen", "rejected"), read=_preference)
_MESSAGES = Format(name="messages", keys=("messages",), read=_messages)
_COMPLETION = Format(name="prompt, completion", keys=("prompt", "completion"), read=_completion)
_LABELLED = Format(name="prompt, completion, label", keys=("prompt", "completion", "label"), read=_rated)
_TEXT = Format(name="text", keys=("text",), read=_text)

# The first that fits: rows of preference data often bring `messages` along, and conversations a `prompt`.
_FORMATS: dict[Kind, tuple[Format, ...]] = {
    "chat": (_HALOS_SAMPLE, _HALOS_PAIRWISE, _MESSAGES, _COMPLETION, _PREFERENCE, _TEXT),
    "pairs": (_HALOS_PAIRWISE, _PREFERENCE),
    "feedback": (_HALOS_BINARY, _HALOS_PAIRWISE, _LABELLED, _PREFERENCE),
}


# -- parts of a row


def _of_pair(prompt: Words, chosen: Words, rejected: Words, row: Fields, kind: Kind) -> list[Example]:
    """A pair; or its chosen completion to imitate; or two completions, the one desirable and the other not."""
    if kind == "pairs":
        return [_answered(prompt, (chosen, rejected), row)]
    good = _answered(prompt, (chosen,), row)
    return [good] if kind == "chat" else [good, _answered(prompt, (rejected,), row, is_desirable=False)]


def _answered(prompt: Words, completions: tuple[Words, ...], row: Fields, *, is_desirable: bool = True) -> Answered:
    """Of a prompt and completions that are all texts, or all messages."""
    if not isinstance(prompt, str):
        if not prompt:
            raise BadRow("prompt has no messages")
        completions = tuple(
            ({"role": ASSISTANT, "content": each},) if isinstance(each, str) else each for each in completions
        )
    elif not all(isinstance(each, str) for each in completions):
        raise BadRow("the prompt is a text, and what follows it messages; write both alike")
    return Answered(prompt=prompt, completions=completions, is_desirable=is_desirable, settings=_settings(row))


def _words(row: Fields, key: str) -> Words:
    value = row.get(key)
    if isinstance(value, str):
        return _checked(value, key)
    if isinstance(value, list):
        return _turns(row, key)
    raise BadRow(f"{key} is {_found(row, key)}, and must be a text or a list of messages")


def _completion_of(row: Fields, key: str) -> Words:
    words = _words(row, key)
    _require_completion(words, key)
    return words


def _require_completion(words: Words, key: str) -> None:
    if isinstance(words, str):
        if not words:
            raise BadRow(f"{key} is empty")
        return
    _require_assistant_last(words, key)
    if words[0]["role"] != ASSISTANT or any(turn["role"] == "user" for turn in words):
        roles = ", ".join(turn["role"] for turn in words)
        raise BadRow(
            f"{key} has messages of {roles}; a completion begins and ends with the assistant's, without a user's"
        )


def _require_assistant_last(messages: Turns, key: str) -> None:
    if not messages:
        raise BadRow(f"{key} is an empty list")
    last = messages[-1]
    if last["role"] != ASSISTANT:
        raise BadRow(f"{key} ends with a message of {last['role']}, not of the assistant")
    if not any(value for name, value in last.items() if name != "role"):
        raise BadRow(f"{key} ends with an empty message")


def _turns(row: Fields, key: str) -> Turns:
    value = row.get(key)
    if not isinstance(value, list):
        raise BadRow(f"{key} is {_found(row, key)}, and must be a list of messages")
    turns = []
    for number, turn in enumerate(value):
        where = f"{key}[{number}]"
        if not isinstance(turn, Mapping):
            raise BadRow(f"{where} is {json_type(turn)}, and must be a message: an object with role and content")
        # Columns of structs have every key that any row has.
        present = {name: item for name, item in turn.items() if item is not None}
        if not isinstance(role := present.get("role"), str) or not role:
            raise BadRow(f"{where} has no role ({_found(present, 'role')})")
        content = present.get("content")
        if isinstance(content, list):
            # A plain template would write the list's brackets and keys as if somebody had said them.
            raise BadRow(f"{where} has a content in parts (a list), and must be a text; join the parts' texts")
        if not isinstance(content, str) and not present.get("tool_calls"):
            raise BadRow(f"{where} has no content ({_found(present, 'content')})")
        for name, item in present.items():
            _checked(
                item if isinstance(item, str) else _as_json(item), where if name == "content" else f"{where}.{name}"
            )
        turns.append(present)
    return tuple(turns)


def _string(row: Fields, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise BadRow(f"{key} is {_found(row, key)}, and must be a text")
    return _checked(value, key)


def _checked(text: str, key: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRow(f"{key} is not valid Unicode (a lone surrogate)") from None
    return text


def _truth(row: Fields, key: str) -> bool:
    value = row.get(key)
    if isinstance(value, (bool, int, float)) and value in {0, 1}:
        return bool(value)
    shown = f"{value!r}"[:40]
    raise BadRow(f"{key} is {shown}, and must be true or false, 1 or 0")


def _settings(row: Fields) -> dict[str, Any]:
    settings = row.get("chat_template_kwargs", {})
    if not isinstance(settings, Mapping):
        raise BadRow(f"chat_template_kwargs is {json_type(settings)}, and must be an object")
    present = {key: value for key, value in settings.items() if value is not None}
    made = {**present, **({"tools": row["tools"]} if row.get("tools") else {})}
    if made:
        _checked(_as_json(made), "chat_template_kwargs or tools")
    return made


def _as_json(value: object) -> str:
    """With every character as it is, to be checked."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _found(row: Fields, key: str) -> str:
    return json_type(row[key]) if key in row else "missing"
