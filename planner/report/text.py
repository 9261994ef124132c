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
