"""Parses one override of Hydra's command line, `key=value`, by the grammar of Hydra 1.3."""

import re
from dataclasses import dataclass
from typing import Any

_INT = "(?:0|[1-9](?:_?[0-9])*)"
_DIGITS = "[0-9](?:_?[0-9])*"
_POINT = rf"(?:{_INT}\.{_DIGITS}|\.{_DIGITS}|{_INT}\.)"
_ID = "[A-Za-z_][A-Za-z0-9_-]*"
_SPECIAL = "[A-Za-z_$][A-Za-z0-9_$-]*"
_PART = rf"(?:{_SPECIAL}|{_INT})"
_PACKAGE = rf"(?:{_PART}(?:\.{_PART})+|{_SPECIAL})"
_OVERRIDE = re.compile(
    rf"(?P<sign>\+\+|\+|~)?(?P<key>{_ID}(?:/{_ID})+|{_PACKAGE})(?:@(?P<package>{_PACKAGE}?))?(?:=[ \t]*(?P<value>.*))?",
    re.DOTALL,
)
# Tokens of a value. The longest match wins, and the first of two that are equally long.
_TOKENS = {
    "float": re.compile(rf"[+-]?(?:(?:{_POINT}|{_INT})[eE][+-]?{_DIGITS}|{_POINT}|[Ii][Nn][Ff]|[Nn][Aa][Nn])"),
    "int": re.compile(rf"[+-]?{_INT}"),
    "bool": re.compile("[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]"),
    "null": re.compile("[Nn][Uu][Ll][Ll]"),
    "other": re.compile(r"[/\-\\+.$%*@?|]"),
    "colon": re.compile("[ \t]*:[ \t]*"),
    "id": re.compile(_ID),
    "escape": re.compile(r"(?:\\[\\()\[\]{}:=, \t])+"),
    "space": re.compile("[ \t]+"),
    "interpolation": re.compile(r"\$\{[^}]+\}"),
}
_SPACE = "[ \t]*"
_SIGNS = {
    **{sign: re.compile(rf"{_SPACE}{sign}{_SPACE}") for sign in ",:"},
    **{sign: re.compile(rf"\{sign}{_SPACE}") for sign in "[{"},
    **{sign: re.compile(rf"\{sign}") for sign in "]}"},
}
_QUOTED = re.compile(r"""(?:"(?:(?:\\\\)*|.*?[^\\](?:\\\\)*)"|'(?:(?:\\\\)*|.*?[^\\](?:\\\\)*)')""", re.DOTALL)
_MAX_DEPTH = 20
_MAX_TEXT = 10_000
_MAX_DIGITS = 300


@dataclass(frozen=True, kw_only=True)
class Override:
    """`key=value`, `+key=value` (a new key), `++key=value` (new or not), `~key` or `~key=value` (remove the key)."""

    sign: str
    key: str
    value: Any = None
    """None also for `~key`"""
    package: str | None = None
    """the part behind `@`: `group@package=option`"""
    text: str = ""
    """the override as written"""
    is_sweep: bool = False
    """whether it has several values, as in `lr=1e-6,1e-5`. Then `value` is the list of them"""


class NoOverride(ValueError):
    """The text is no override that planner reads. The message says why."""


def parse(text: str) -> Override:
    """The override in an argument.

    Raises:
        NoOverride: Hydra's grammar has no such text, or it calls one of Hydra's functions.
    """
    found = _OVERRIDE.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if found is None or (found["value"] is None and found["sign"] != "~"):
        raise NoOverride("not KEY=VALUE")
    values: list[Any] = [""]
    if found["value"]:
        values = _Values(found["value"]).values()
    elif found["value"] is None:
        values = [None]
    is_sweep = len(values) > 1
    return Override(
        sign=found["sign"] or "",
        key=found["key"],
        value=values if is_sweep else values[0],
        package=found["package"],
        text=text,
        is_sweep=is_sweep,
    )


def is_plain_text(value: str) -> bool:
    """Whether Hydra reads a value without quotes as exactly this text."""
    try:
        return bool(parse(f"key={value}").value == value)
    except NoOverride:
        return False


class _Values:
    """Reads the text behind `=` from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def values(self) -> list[Any]:
        """The values between commas at the top: one, or those of a sweep."""
        found = [self._element(0)]
        while self._takes(","):
            found.append(self._element(0))
        if self._at < len(self._text):
            raise NoOverride(f"Hydra cannot read {self._text[self._at :][:20]!r} in its value")
        return found

    def _takes(self, sign: str) -> bool:
        """Whether the sign comes next. Skips it, with the white space that belongs to it."""
        found = _SIGNS[sign].match(self._text, self._at)
        if found:
            self._at = found.end()
        return bool(found)

    def _element(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise NoOverride(f"its value is nested more than {_MAX_DEPTH} deep")
        if self._text.startswith("[", self._at):
            return self._list(depth)
        if self._text.startswith("{", self._at):
            return self._dict(depth)
        return self._primitive(is_key=False)

    def _list(self, depth: int) -> list[Any]:
        self._takes("[")
        items: list[Any] = []
        while not self._takes("]"):
            if items and not self._takes(","):
                raise NoOverride("its list does not end")
            items.append(self._element(depth + 1))
        return items

    def _dict(self, depth: int) -> dict[str, Any]:
        self._takes("{")
        pairs: dict[str, Any] = {}
        while not self._takes("}"):
            if pairs and not self._takes(","):
                raise NoOverride("its mapping does not end")
            key = self._primitive(is_key=True)
            if not isinstance(key, str) or not self._takes(":"):
                raise NoOverride("its mapping has a key that is no text, or no colon")
            pairs[key] = self._element(depth + 1)
        return pairs

    def _primitive(self, *, is_key: bool) -> Any:
        """A quoted text, or tokens up to the next sign. Several tokens together are a text."""
        if quoted := _QUOTED.match(self._text, self._at):
            if is_key:
                raise NoOverride("its mapping has a quoted key")
            self._at = quoted.end()
            return _unescaped(quoted[0])
        tokens: list[tuple[str, str]] = []
        while token := self._token(is_key=is_key):
            tokens.append(token)
        while tokens and tokens[-1][0] == "space":
            tokens.pop()
        while tokens and tokens[0][0] == "space":
            tokens.pop(0)
        if not tokens:
            raise NoOverride("it has an empty value between its signs")
        if self._text.startswith("(", self._at):
            raise NoOverride("it calls a function of Hydra's")
        return _typed(*tokens[0]) if len(tokens) == 1 else "".join(_plain(*token) for token in tokens)

    def _token(self, *, is_key: bool) -> tuple[str, str] | None:
        """The next token, None before a sign of lists, mappings and sweeps, or at the end."""
        found = [(name, match[0]) for name, each in _TOKENS.items() if (match := each.match(self._text, self._at))]
        if not found:
            return None
        name, text = max(found, key=lambda pair: len(pair[1]))
        # White space before a sign belongs to the sign.
        end = self._at + len(text)
        if name == "space" and end < len(self._text) and self._text[end] in ",=":
            return None
        if is_key and name in {"interpolation", "colon"}:
            return None
        self._at = end
        return name, text


def _typed(name: str, text: str) -> Any:
    if name in {"int", "float"} and len(text) > _MAX_DIGITS:
        raise NoOverride(f"it has a number of more than {_MAX_DIGITS} digits")
    match name:
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "bool":
            return text.lower() == "true"
        case "null":
            return None
    return _plain(name, text)


def _plain(name: str, text: str) -> str:
    return text[1::2] if name == "escape" else text


def _unescaped(quoted: str) -> str:
    """The text inside quotes. Backslashes count only before a quote sign of the same kind."""
    text = re.sub(rf"\\+{quoted[0]}", lambda found: found[0][1::2], quoted[1:])
    # Backslashes before the closing sign are undone together with it.
    return text if re.search(rf"\\{quoted[0]}$", quoted) else text[:-1]
