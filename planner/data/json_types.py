"""Names of JSON types, and values of JSON files, for messages."""

import json

_JSON_TYPES = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


_MOST_SHOWN = 60


def shown(value: object) -> str:
    """A value of a JSON file on one line of ASCII, shortened, with its type: `"llama" (a string)`."""
    if value is None:
        return "null"
    text = json.dumps(value)
    return f"{text if len(text) <= _MOST_SHOWN else f'{text[:_MOST_SHOWN]}...'} ({json_type(value)})"


def json_type(value: object) -> str:
    """The JSON type of a value, such as `an object` or `a number`."""
    return _JSON_TYPES.get(type(value), "a number")
