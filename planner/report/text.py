"""Plain text: aligned columns, lines that are whole whatever a terminal's width, and counted things."""

from collections.abc import Collection, Sequence

_GAP = "  "


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


def counted(number: int, thing: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
