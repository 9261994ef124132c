"""Reads JSON that may be torn, foreign or hostile, and shows its values in messages."""

import json
from pathlib import Path
from typing import Any

from planner.base.disk import read_bounded

_JSON_TYPES = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
_MOST_SHOWN = 60


class NoJson(ValueError):
    """A text is not the JSON that it should be. The message says what it is instead, such as `not a JSON object`."""


def json_value(content: str | bytes) -> Any:
    """The value of a JSON text. Of two equal keys, the last one counts.

    Raises:
        NoJson: it is not JSON, not Unicode, or nested too deeply.
    """
    try:
        return json.loads(content)
    except ValueError as error:
        raise NoJson(f"not JSON ({error})") from error
    except RecursionError as error:  # brackets, nested about a thousand deep
        raise NoJson("nested too deeply") from error


def json_object(content: str | bytes) -> dict[str, Any]:
    """The object in a JSON text.

    Raises:
        NoJson: as `json_value`, or the value is no object.
    """
    if isinstance(value := json_value(content), dict):
        return value
    raise NoJson("not a JSON object")


def read_json_object(path: str | Path, most_bytes: int) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        OSError: the file cannot be read, is not a regular file, or has more than `most_bytes` bytes.
        NoJson: there is no JSON object in it.
    """
    return json_object(read_bounded(path, most_bytes))


def shown(value: object) -> str:
    """A value of a JSON file on one line of ASCII, shortened, with its type: `"llama" (a string)`."""
    if value is None:
        return "null"
    text = json.dumps(value)
    return f"{text if len(text) <= _MOST_SHOWN else f'{text[:_MOST_SHOWN]}...'} ({json_type(value)})"


def json_type(value: object) -> str:
    """The JSON type of a value, such as `an object` or `a number`."""
    return _JSON_TYPES.get(type(value), "a number")
