"""Values as foreign files and command lines write them -> plain values, and back to one line of text."""

import math
import re
from dataclasses import dataclass
from typing import Any

_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_DECIMAL = re.compile(r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
# `$NAME` or `${NAME}`, which is the shell's by its capitals; `${name}` is Hydra's.
_SHELL = re.compile(r"\$(?:([A-Za-z0-9_]+)|\{([A-Z_][A-Z0-9_]*)(?::?-[^{}]*)?\})")
_HYDRAS_ENV = re.compile(r"\$\{oc\.env:([A-Za-z0-9_]+)")
_WORDS = {"null": None, "none": None, "~": None, "true": True, "false": False}
# More than any value of a recipe needs; far below the 4300 digits at which Python's int() gives up.
_MAX_DIGITS = 40


@dataclass(frozen=True)
class Unresolved:
    """Stands for a value that cannot be known from here, such as `$LR`: an error only if it is needed."""

    text: str
    why: str


def shell_names(text: str) -> list[str]:
    """The variables of the shell in a word: `$LR`, `${BETA}` -> `LR`, `BETA`."""
    return list(dict.fromkeys(plain or braced for plain, braced in _SHELL.findall(text)))


def env_names(text: str) -> list[str]:
    """The variables of the shell that a value leans on, by `$NAME` or by Hydra's `${oc.env:NAME}`."""
    return [*shell_names(text), *_HYDRAS_ENV.findall(text)]


def scalar(text: str) -> Any:
    """A word of YAML, of Hydra's grammar or of a command line: `5e-7` and `20_000` are numbers everywhere."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) <= _MAX_DIGITS and _INTEGER.fullmatch(text):
        return int(text)
    if len(text) <= _MAX_DIGITS and _DECIMAL.fullmatch(text) and math.isfinite(value := float(text.replace("_", ""))):
        return value
    return text


def hydra_value(text: str) -> Any:
    """What stands behind the `=` of an override: a scalar, a quoted text, or a list of such."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.startswith("[") and text.endswith("]"):
        return [hydra_value(item) for item in text[1:-1].split(",") if item.strip()]
    return scalar(text)


def written(value: Any) -> str:
    """A value as a command line has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """`5e-07` -> `5e-7`; whole numbers without a point."""
    if abs(value) < 1e15 and value == int(value):
        return str(int(value))
    return re.sub(r"e([-+])0+", lambda found: "e" + found[1].replace("+", ""), repr(float(value)))
