"""Reads a JSON object, such as a DeepSpeed file. A YAML parser would fail on its tabs and `//` comments."""

import json
import re
from collections import Counter
from functools import partial
from typing import Any

from planner.files.messages import cut
from planner.recipes.repeats import RepeatedKey

# An object whose first key is in quotes: `{path: //server}` is YAML.
_BETWEEN = r"(?>\s|//[^\n]*|/\*.*?\*/)*+"
_OBJECT = re.compile(rf'\A{_BETWEEN}\{{{_BETWEEN}"', re.DOTALL)
_STRING_OR_COMMENT = re.compile(r'"(?>[^"\\]|\\.)*+(?:"|\Z)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)


class JsonError(Exception):
    """A mistake that only a JSON parser can name. The message says what was found and what to do."""


def object_of(text: str, repeats: list[RepeatedKey] | None = None) -> dict[str, Any] | None:
    """The JSON object in a text. None if YAML should read it, for example because it has a trailing comma.

    Args:
        text: the text of a file.
        repeats: gets the keys that occur twice, of which the last one counts. Without it such a key is an error.

    Raises:
        JsonError: a key occurs twice, or the text is invalid and indented by tabs, which YAML does not read.
    """
    found: list[RepeatedKey] = []
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text, object_pairs_hook=partial(_pairs, found), parse_constant=str)
    except json.JSONDecodeError as error:
        if "\n\t" not in text:
            return None
        raise JsonError(f"line {error.lineno}: found a mistake ({error.msg}). Correct it") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, or brackets
        return None
    if found and repeats is None:
        raise JsonError(f"found {cut(found[0].name)} twice. Keep one")
    if repeats is not None:
        repeats += found
    return value if isinstance(value, dict) else None


def without_comments(text: str) -> str:
    """A JSON object without its `//` and `/* */` comments, with its line breaks. Any other text is unchanged."""
    return _STRING_OR_COMMENT.sub(_blank, text) if _OBJECT.match(text) else text


def _blank(found: re.Match[str]) -> str:
    """A string is kept. A comment becomes its line breaks."""
    return found[0] if found[0].startswith('"') else "\n" * found[0].count("\n") or " "


def _pairs(repeats: list[RepeatedKey], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a dict. Keys that occur twice are added to `repeats`."""
    made = dict(pairs)
    numbers = Counter(name for name, _ in pairs)
    repeats += [RepeatedKey(name=name, value=_shown(made[name])) for name, number in numbers.items() if number > 1]
    return made


def _shown(value: Any) -> str:
    return "" if isinstance(value, dict | list) else json.dumps(value)
