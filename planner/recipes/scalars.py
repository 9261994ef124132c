"""Parses values as recipes and command lines write them, and writes them back as text on one line."""

import math
import re
import shlex
from dataclasses import dataclass
from typing import Any

_DIGITS = "[0-9]+(?:_[0-9]+)*"
_INTEGER = re.compile(f"[-+]?{_DIGITS}")
_DECIMAL = re.compile(rf"[-+]?(\.{_DIGITS}|{_DIGITS}(\.({_DIGITS})?)?)([eE][-+]?[0-9]+)?")
# `$NAME` or `${NAME}` in capitals is a shell variable. `${name}` is Hydra's, but `${name:-}` a shell's.
_SHELL = re.compile(r"\$(?:([A-Za-z0-9_]+)|\{([A-Z_][A-Z0-9_]*|[0-9]+|[A-Za-z_]\w*(?=:-\}))(?::?-[^{}]*)?\})")
# `$(command)`, `$((expression))`, `$@`, `${#NAME}`, `${NAME%.py}`, `${NAME[0]}`. `${name:...}` is Hydra's.
_OTHER_OF_SHELL = re.compile(r"\$(?:[(@*#?!$-]|\{(?:[#!@*?$-]|[A-Z_][A-Z0-9_]*:|[A-Za-z_]\w*[%#/^,@\[?=+]))")
_ARITHMETIC = re.compile(r"\$\(\(([^()]*)\)\)")
_NEEDS_NO_QUOTES = re.compile(r"[\w$+@%=:,./{}\[\]~-]*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_HYDRAS_ENV = re.compile(r"\$\{oc\.env:([A-Za-z0-9_]+)")
_LITERALS = {"null": None, "none": None, "~": None, "true": True, "false": False}
# More than a recipe needs, and far below the 4300 digits at which Python's int() fails.
_MAX_DIGITS = 40

TRUE_TEXTS, FALSE_TEXTS = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")
"""texts that transformers' HfArgumentParser reads as booleans, in lower or upper case"""


@dataclass(frozen=True)
class Unresolved:
    """A value that planner cannot know, such as `$LR`. It is an error only if it is needed."""

    text: str
    """the value as written"""
    why: str
    """why it is unknown, for messages"""


def shell_names(text: str) -> list[str]:
    """The names of the shell variables in a text: `$LR/${BETA}` -> `LR`, `BETA`."""
    return list(dict.fromkeys(plain or braced for plain, braced in _SHELL.findall(text)))


def has_shell(text: str) -> bool:
    """Whether a text contains what only a shell can fill in: a variable, or a command such as `$(nproc)`."""
    return bool(_SHELL.search(text) or _OTHER_OF_SHELL.search(text))


def for_shell(argument: str) -> str:
    """The argument for a shell. What planner left open, such as `$NAME`, is left to that shell."""
    if not has_shell(argument):
        return shlex.quote(argument)
    if _NEEDS_NO_QUOTES.fullmatch(argument):
        return argument
    return f'"{argument}"' if "$(" in argument else '"' + re.sub(r'(["\\])', r"\\\1", argument) + '"'


def env_names(text: str) -> list[str]:
    """The names of the shell variables in a value, of those in `$((NAME * 8))`, and in Hydra's `${oc.env:NAME}`."""
    computed = [name for inner in _ARITHMETIC.findall(text) for name in _NAME.findall(inner)]
    return list(dict.fromkeys([*shell_names(text), *computed, *_HYDRAS_ENV.findall(text)]))


def scalar(text: str) -> Any:
    """The value of an unquoted text in YAML, Hydra or a command line. `5e-7` and `20_000` are numbers."""
    if text.lower() in _LITERALS:
        return _LITERALS[text.lower()]
    if len(text) <= _MAX_DIGITS and _INTEGER.fullmatch(text):
        return int(text)
    if len(text) <= _MAX_DIGITS and _DECIMAL.fullmatch(text) and math.isfinite(value := float(text.replace("_", ""))):
        return value
    return text


def written(value: Any) -> str:
    """A value as text for a command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """A number as text: `5e-7` and not `5e-07`, `1` and not `1.0`."""
    if abs(value) < 1e15 and value == int(value):
        return str(int(value))
    return re.sub(r"e([-+])0+", lambda found: "e" + found[1].replace("+", ""), repr(float(value)))
