"""Reads and checks the fields of a row: texts, lists of messages, labels. A wrong field raises `BadRow`."""

import json
from collections.abc import Mapping
from typing import Any

from planner.base.json_text import json_type
from planner.data.examples import ASSISTANT, BadRow, TextOrTurns, Turn, Turns

Fields = Mapping[str, Any]
"""name -> value, without values that are null"""


def text_or_turns(row: Fields, key: str) -> TextOrTurns:
    """The text or the messages at `key`.

    Raises:
        BadRow: the value is neither.
    """
    value = row.get(key)
    if isinstance(value, str):
        return _checked(value, key)
    if isinstance(value, list):
        return turns_of(row, key)
    raise BadRow(f"{key} is {_found(row, key)}, and must be a text or a list of messages")


def completion_of(row: Fields, key: str) -> TextOrTurns:
    """The completion at `key`: a text, or messages of the assistant.

    Raises:
        BadRow: it is missing, empty, or has messages of a user.
    """
    completion = text_or_turns(row, key)
    require_completion(completion, key)
    return completion


def require_completion(completion: TextOrTurns, key: str) -> None:
    """Check that a text is not empty, or that messages begin and end with the assistant's and have none of a user.

    Raises:
        BadRow: it is not a completion.
    """
    if isinstance(completion, str):
        if not completion:
            raise BadRow(f"{key} is empty")
        return
    require_assistant_last(completion, key)
    if completion[0]["role"] != ASSISTANT or any(turn["role"] == "user" for turn in completion):
        roles = ", ".join(turn["role"] for turn in completion)
        raise BadRow(
            f"{key} has messages of {roles}. A completion must begin and end with the assistant's, and have no user's"
        )


def require_assistant_last(messages: Turns, key: str) -> None:
    """Check that the last message is the assistant's and not empty.

    Raises:
        BadRow: it is another's or empty, or there are no messages.
    """
    if not messages:
        raise BadRow(f"{key} is an empty list")
    last = messages[-1]
    if last["role"] != ASSISTANT:
        raise BadRow(f"{key} ends with a message of {last['role']}, not of the assistant")
    if not any(value for name, value in last.items() if name != "role"):
        raise BadRow(f"{key} ends with an empty message")


def turns_of(row: Fields, key: str) -> Turns:
    """The messages at `key`, each without keys that are null.

    Raises:
        BadRow: the value is not a list, or a message has no role or no readable content.
    """
    value = row.get(key)
    if not isinstance(value, list):
        raise BadRow(f"{key} is {_found(row, key)}, and must be a list of messages")
    return tuple(_turn(turn, f"{key}[{number}]") for number, turn in enumerate(value))


def _turn(turn: object, where: str) -> Turn:
    if not isinstance(turn, Mapping):
        raise BadRow(f"{where} is {json_type(turn)}, and must be a message: an object with role and content")
    # A column of structs gives each row the keys of all rows.
    present = {name: item for name, item in turn.items() if item is not None}
    if not isinstance(role := present.get("role"), str) or not role:
        found = "empty" if role == "" else _found(present, "role")
        raise BadRow(f"{where}.role is {found}, and must be a text")
    content = present.get("content")
    if isinstance(content, list):
        # A plain template would write the list's brackets and keys into the text.
        raise BadRow(f"{where} has a list of parts as content, and must have a text. Join the parts")
    if not isinstance(content, str) and not present.get("tool_calls"):
        raise BadRow(f"{where}.content is {_found(present, 'content')}, and must be a text")
    for name, item in present.items():
        text = item if isinstance(item, str) else _as_json(item)
        _checked(text, where if name == "content" else f"{where}.{name}")
    return present


def string_of(row: Fields, key: str) -> str:
    """The text at `key`.

    Raises:
        BadRow: the value is not a text, or not valid Unicode.
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
    """The boolean at `key`, written as true and false or as 1 and 0.

    Raises:
        BadRow: the value is not a boolean.
    """
    value = row.get(key)
    if isinstance(value, (bool, int, float)) and value in {0, 1}:
        return bool(value)
    shown = f"{value!r}"[:40]
    raise BadRow(f"{key} is {shown}, and must be true or false, 1 or 0")


def settings_of(row: Fields) -> dict[str, Any]:
    """The variables for the chat template besides the messages: `chat_template_kwargs` and `tools`.

    Raises:
        BadRow: they are not an object, or not valid Unicode.
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
    """JSON with characters unescaped, so that they can be checked."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _found(row: Fields, key: str) -> str:
    return json_type(row[key]) if key in row else "missing"
