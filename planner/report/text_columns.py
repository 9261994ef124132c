"""Lays out plain text: aligned columns, and texts that are wrapped to a terminal's width."""

import time
from collections.abc import Collection, Sequence
from textwrap import wrap
from unicodedata import category, east_asian_width

from planner.base.text import duration

_GAP = "  "
_DAY_S = 24 * 3600.0
# The year 5138. A damaged file may hold any number.
_LATEST_S = 1e11
# A text in a narrower column is hard to read, so it moves below its row.
_LEAST_COLUMNS = 40
_BELOW = " " * 6
_FILLER = "\0"
# Unicode's categories of accents and of invisible characters.
_NO_COLUMN = {"Mn", "Me", "Cf"}


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> list[str]:
    """Return one line per row. Each column is as wide as its widest cell on a terminal.

    Args:
        rows: the cells of each row, all rows of one length.
        left: indices of the columns that are aligned to the left. The others are aligned to the right.
    """
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(
            _padded(cell, width, is_left=index in left)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _padded(cell: str, width: int, *, is_left: bool) -> str:
    padding = " " * (width - columns_of(cell))
    return cell + padding if is_left else padding + cell


def columns_of(text: str) -> int:
    """The columns that a text takes on a terminal: two for a Chinese character, none for a combining accent."""
    if text.isascii():
        return len(text)
    return sum(0 if category(char) in _NO_COLUMN else 1 + (east_asian_width(char) in {"W", "F"}) for char in text)


def hanging(prefix: str, text: str, width: int | None) -> list[str]:
    """Return a prefix and a text in at most `width` columns. Later lines of the text start below its first line.

    If fewer than 40 columns are left for the text, it starts on the line below the prefix. No word is broken, so a
    path or a digest may pass the width. With None as the width, the result is one line.
    """
    start = columns_of(prefix)
    if not text or width is None or start + columns_of(text) <= width:
        return [f"{prefix}{text}".rstrip()]
    if width - start >= _LEAST_COLUMNS:
        return _wrapped(text, width, prefix, " " * start)
    return [prefix.rstrip(), *_wrapped(text, max(width, _LEAST_COLUMNS), _BELOW, _BELOW)]


def wrapped(text: str, width: int | None, first: str = "", later: str = "  ") -> list[str]:
    """Return a text in at most `width` columns (never below 40), with the indents of its first and its later lines.

    No word is broken. With None as the width, the result is one line.
    """
    return [f"{first}{text}"] if width is None else _wrapped(text, max(width, _LEAST_COLUMNS), first, later)


def _wrapped(text: str, width: int, first: str, later: str) -> list[str]:
    lines = wrap(
        _stretched(text),
        width,
        initial_indent=_stretched(first),
        subsequent_indent=later,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace(_FILLER, "") for line in lines] or [first.rstrip()]


def _stretched(text: str) -> str:
    """The text with a filler behind each wide character, because `textwrap` counts characters and not columns."""
    return text if text.isascii() else "".join(char + _FILLER * (columns_of(char) - 1) for char in text)


def spans(numbers: Sequence[int], most: int = 12) -> str:
    """Return ascending numbers as ranges, such as `1-4, 7, 9-12`. After `most` ranges only the last number follows."""
    pieces: list[list[int]] = []
    for number in numbers:
        if pieces and number == pieces[-1][-1] + 1:
            pieces[-1][1:] = [number]
        else:
            pieces.append([number])
    ranges = ["-".join(map(str, piece)) for piece in pieces]
    return ", ".join(ranges) if len(ranges) <= most else f"{', '.join(ranges[: most - 1])}, ..., {numbers[-1]}"


def ago(then_s: float | None, now_s: float) -> str:
    """Return `12 s ago` or `5 days ago`, or `-` if there is no time. A time in the future counts as now."""
    if then_s is None:
        return "-"
    seconds = max(now_s - then_s, 0.0)
    return f"{seconds / _DAY_S:.0f} days ago" if seconds > 2 * _DAY_S else f"{duration(seconds)} ago"


def utc(time_s: float) -> str:
    """Return `2026-11-21 13:30:00 UTC` for seconds since the epoch. The nearest valid time if it is out of range."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(min(max(time_s, 0.0), _LATEST_S)))
