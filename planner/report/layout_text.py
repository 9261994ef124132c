"""Plain text: aligned columns, and lines that are whole whatever a terminal's width."""

from collections.abc import Collection, Sequence

from planner.base.text import duration

_GAP = "  "
_DAY_S = 24 * 3600.0


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> list[str]:
    """One line per row, its columns as wide as their widest cell; to the right, but for the columns in `left`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def spans(numbers: Sequence[int], most: int = 12) -> str:
    """Rising numbers, neighbours together: `1-4, 7, 9-12`; past `most` pieces only the last number."""
    pieces: list[list[int]] = []
    for number in numbers:
        if pieces and number == pieces[-1][-1] + 1:
            pieces[-1][1:] = [number]
        else:
            pieces.append([number])
    words = ["-".join(map(str, piece)) for piece in pieces]
    return ", ".join(words) if len(words) <= most else f"{', '.join(words[: most - 1])}, ..., {numbers[-1]}"


def printable(text: str) -> str:
    """The text with what would steer a terminal, line breaks too, written as Python would."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def ago(then_s: float | None, now_s: float) -> str:
    """`12 s ago`, `5 days ago`; `-` if there is no such time. What another machine's clock puts ahead was now."""
    if then_s is None:
        return "-"
    seconds = max(now_s - then_s, 0.0)
    return f"{seconds / _DAY_S:.0f} days ago" if seconds > 2 * _DAY_S else f"{duration(seconds)} ago"
