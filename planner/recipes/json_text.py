"""Reads a JSON object, such as a DeepSpeed file. YAML reads most, but none with tabs or with comments of `//`."""

import json
import re
from typing import Any

from planner.files.messages import cut

# An object whose first key stands in quotes: `{path: //server}` is YAML.
_BETWEEN = r"(?>\s|//[^\n]*|/\*.*?\*/)*+"
_OBJECT = re.compile(rf'\A{_BETWEEN}\{{{_BETWEEN}"', re.DOTALL)
_STRING_OR_COMMENT = re.compile(r'"(?>[^"\\]|\\.)*+(?:"|\Z)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)


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


def without_comments(text: str) -> str:
    """A JSON object without its `//` and `/* */` comments, each line where it was; any other text as it is."""
    return _STRING_OR_COMMENT.sub(_blank, text) if _OBJECT.match(text) else text


def _blank(found: re.Match[str]) -> str:
    """A string as it is; of a comment its line breaks."""
    return found[0] if found[0].startswith('"') else "\n" * found[0].count("\n") or " "


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise JsonError(f"found {cut(name)} twice; take one out")
        made[name] = value
    return made
