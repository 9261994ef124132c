"""Reads a JSON object, such as a DeepSpeed file. YAML reads most of them, but none that is indented by tabs."""

import json
from typing import Any

from planner.files.words import cut


class JsonError(Exception):
    """A mistake that only JSON's own reader can name; the message says what was found and what to do."""


def object_of(text: str) -> dict[str, Any] | None:
    """The JSON object in a text; none if YAML should read it, which allows comments and trailing commas.

    Raises:
        JsonError: a key stands twice, or a mistake stands among tabs.
    """
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=str)
    except json.JSONDecodeError as error:
        if "\n\t" not in text:
            return None
        raise JsonError(f"line {error.lineno}: found a mistake ({error.msg}); mend it") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, or brackets
        return None
    return value if isinstance(value, dict) else None


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise JsonError(f"found {cut(name)} twice; take one out")
        made[name] = value
    return made
