"""What JSON calls its values, for messages."""

_JSON_TYPES = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


def json_type(value: object) -> str:
    """What it is, in the words of JSON."""
    return _JSON_TYPES.get(type(value), "a number")
