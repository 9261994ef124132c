"""Values as text on one line, and the lines of an error. It knows neither YAML nor the model."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import JobError, lines_within, printable, shortened

MAX_MISTAKES = 20
MAX_SHOWN = 60
_MAX_SOURCE = 200

KeyPath = tuple[str | int, ...]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One line of an error."""

    path: KeyPath = ()
    """the place in the file, empty for the file itself"""
    text: str
    hides: bool = True
    """errors of the model about the value at `path` are not reported"""


@dataclass(frozen=True)
class InvalidValue:
    """Stands for a value that no field accepts, so that the model's error can say what was found."""

    found: str
    """the value as text"""


def job_error(source: str, mistakes: Sequence[Mistake]) -> JobError:
    """The error for a job file with these mistakes."""
    return JobError(listed(source, mistakes))


def listed(source: str, mistakes: Sequence[Mistake]) -> str:
    """One line per mistake, each beginning with `source` and the key's path, at most `MAX_CHARS` together.

    `source` is a path or a name, with any characters. Lines that do not fit are only counted.
    """
    source = shortened(printable(source), _MAX_SOURCE)
    lines = [": ".join(filter(None, (source, dotted(its.path), its.text))) for its in mistakes[:MAX_MISTAKES]]
    return "\n".join(lines_within(lines, len(mistakes)))


def dotted(path: KeyPath) -> str:
    """The path as text, such as `train.optimizer.betas[1]`. Unusual keys are in quotes."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = str(part)  # in a cluster file a key may be any YAML value
            text += ("." if text else "") + (key if _BARE_KEY.fullmatch(cut(key)) else quote(key))
    return text


def show(value: Any) -> str:
    """A value as YAML with its kind, shortened: `3 (a whole number)`."""
    if isinstance(value, InvalidValue):
        return value.found
    if isinstance(value, str):
        return f"{quote(value)} (text)"
    if isinstance(value, dict):
        return f"a section with the keys {cut(', '.join(map(str, value)))}" if value else "an empty section"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, bool):
        return f"{str(value).lower()} (a boolean)"
    return _show_number(value) if isinstance(value, int | float) else "null"


def _show_number(value: float) -> str:
    if isinstance(value, int):
        # Python converts at most 4300 digits.
        if abs(value) >= 10**MAX_SHOWN:
            return f"a whole number of more than {MAX_SHOWN} digits"
        return f"{value} (a whole number)"
    if math.isfinite(value):
        return f"{value!r} (a decimal number)"
    return ".nan (not a number)" if math.isnan(value) else f"{'-' if value < 0 else ''}.inf (infinity)"


def quote(text: str) -> str:
    """The text in double quotes, on one line and shortened."""
    return '"' + cut(text).replace('"', '\\"') + '"'


def cut(text: str, at: int = MAX_SHOWN) -> str:
    """The text on one line. Dots replace what is beyond `at` characters."""
    shown = printable(text[: at + 1])
    return shown if len(shown) <= at else shown[:at] + "..."
