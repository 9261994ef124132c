"""The columns of a row, checked: texts, lists of messages, labels. What is wrong with one raises `BadRow`."""

import json
from collections.abc import Mapping
from typing import Any

from planner.data.examples import ASSISTANT, BadRow, TextOrTurns, Turn, Turns
from planner.data.json_types import json_type

Fields = Mapping[str, Any]
"""column -> value; what is null is left out"""


def text_or_turns(row: Fields, key: str) -> TextOrTurns:
    """A text, or messages.

    Raises:
        BadRow: it is neither.
    """
    value = row.get(key)
    if isinstance(value, str):
        return _checked(value, key)
    if isinstance(value, list):
        return turns_of(row, key)
    raise BadRow(f"{key} is {_found(row, key)}, and must be a text or a list of messages")


def completion_of(row: Fields, key: str) -> TextOrTurns:
    """A completion: a text, or messages of the assistant.

    Raises:
        BadRow: it is missing, empty, or somebody else's.
    """
    words = text_or_turns(row, key)
    require_completion(words, key)
    return words


def require_completion(words: TextOrTurns, key: str) -> None:
    """Check that a text is not empty, or that messages begin and end with the assistant's and have none of a user.

    Raises:
        BadRow: they do not fit.
    """
    if isinstance(words, str):
        if not words:
            raise BadRow(f"{key} is empty")
        return
    require_assistant_last(words, key)
    if words[0]["role"] != ASSISTANT or any(turn["role"] == "user" for turn in words):
        roles = ", ".join(turn["role"] for turn in words)
        raise BadRow(
            f"{key} has messages of {roles}; a completion begins and ends with the assistant's, without a user's"
        )


def require_assistant_last(messages: Turns, key: str) -> None:
    """Check that the last message is the assistant's, and not empty.

    Raises:
        BadRow: it is not, or there are no messages.
    """
    if not messages:
        raise BadRow(f"{key} is an empty list")
    last = messages[-1]
    if last["role"] != ASSISTANT:
        raise BadRow(f"{key} ends with a message of {last['role']}, not of the assistant")
    if not any(value for name, value in last.items() if name != "role"):
        raise BadRow(f"{key} ends with an empty message")


def turns_of(row: Fields, key: str) -> Turns:
    """A list of messages, each without what is null in it.

    Raises:
        BadRow: it is no list, or a message has no role or no content that can be read.
    """
    value = row.get(key)
    if not isinstance(value, list):
        raise BadRow(f"{key} is {_found(row, key)}, and must be a list of messages")
    return tuple(_turn(turn, f"{key}[{number}]") for number, turn in enumerate(value))


def _turn(turn: object, where: str) -> Turn:
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
        text = item if isinstance(item, str) else _as_json(item)
        _checked(text, where if name == "content" else f"{where}.{name}")
    return present


def string_of(row: Fields, key: str) -> str:
    """A text.

    Raises:
        BadRow: it is none, or not valid Unicode.
    """
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


def truth_of(row: Fields, key: str) -> bool:
    """A boolean, written as true and false or as 1 and 0.

    Raises:
        BadRow: it is anything else.
    """
    value = row.get(key)
    if isinstance(value, (bool, int, float)) and value in {0, 1}:
        return bool(value)
    shown = f"{value!r}"[:40]
    raise BadRow(f"{key} is {shown}, and must be true or false, 1 or 0")


def settings_of(row: Fields) -> dict[str, Any]:
    """What the chat template gets besides the messages: `chat_template_kwargs` and `tools`.

    Raises:
        BadRow: they are no object, or not valid Unicode.
    """
    settings = row.get("chat_template_kwargs", {})
    if not isinstance(settings, Mapping):
        raise BadRow(f"chat_template_kwargs is {json_type(settings)}, and must be an object")
    present = {key: value for key, value in settings.items() if value is not None}
    made = {**present, **({"tools": row["tools"]} if row.get("tools") else {})}
    if made:
        _checked(_as_json(made), "chat_template_kwargs or tools")
    return made


def _as_json(value: object) -> str:
    """JSON with every character as it is, not escaped, so that it can be checked."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _found(row: Fields, key: str) -> str:
    return json_type(row[key]) if key in row else "missing"
