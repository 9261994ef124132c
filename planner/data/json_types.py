"""Names of JSON types, for messages."""

_JSON_TYPES = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


def json_type(value: object) -> str:
    """The JSON type of a value, such as `an object` or `a number`."""
    return _JSON_TYPES.get(type(value), "a number")
