"""Draws a loss curve in characters: braille patterns with 2 x 4 dots each, or asterisks."""

from collections.abc import Sequence
from itertools import pairwise

_BLANK = 0x2800
# Unicode's numbering of the dots of a braille pattern: `_DOTS[row][column]`.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_LEAST_COLUMNS = 8
# Sums and differences of larger values could overflow.
_LARGEST = 1e100

Points = Sequence[tuple[int, float]]
"""(step, loss), by ascending step"""


def loss_curve(points: Points, width: int, height: int, *, ascii_only: bool = False) -> list[str]:
    """Draw the curve with its largest and smallest value, and the first and the last step below it.

    Several steps that share a column are drawn as their mean. Values beyond 1e100 are left out.

    Args:
        points: (step, loss), by ascending step.
        width: columns, the labels included.
        height: rows, the labels included.
        ascii_only: draw asterisks, for terminals without Unicode.

    Returns:
        `height` lines of at most `width` columns. None if there are no points or there is no space.
    """
    finite = [(step, loss) for step, loss in points if abs(loss) <= _LARGEST]
    if not finite or height < 2:
        return []
    across, down = (1, 1) if ascii_only else (2, 4)
    values = [loss for _, loss in finite]
    margin = max(len(_number(value)) for value in (min(values), max(values))) + 1
    columns, rows = width - margin, height - 1
    if columns < _LEAST_COLUMNS:
        return []
    means = _by_column(finite, columns * across)
    low, high = min(means.values()), max(means.values())
    cells = _marked(_line(means, low, high, rows * down), across, down)
    lines = [
        "".join(_character(cells.get((row, column), 0), ascii_only=ascii_only) for column in range(columns)).rstrip()
        for row in range(rows)
    ]
    labels = {0: _number(high), rows - 1: _number(low)} if rows > 1 else {0: _number(high)}
    drawn = [f"{labels.get(row, ''):>{margin - 1}} {line}".rstrip() for row, line in enumerate(lines)]
    return [*drawn, _steps(finite, margin, columns)]


def _number(value: float) -> str:
    return f"{value:.4g}"


def _steps(points: Points, margin: int, columns: int) -> str:
    """The line below the curve: its first and its last step."""
    first, last = f"step {points[0][0]}", str(points[-1][0])
    return f"{' ' * margin}{first}{last:>{max(columns - len(first), len(last) + 1)}}"[: margin + columns]


def _by_column(points: Points, columns: int) -> dict[int, float]:
    """Column of dots -> mean of its values, ascending."""
    first, last = points[0][0], points[-1][0]
    found: dict[int, list[float]] = {}
    for step, loss in points:
        column = (step - first) * (columns - 1) // max(last - first, 1)
        found.setdefault(column, []).append(loss)
    return {column: sum(values) / len(values) for column, values in found.items()}


def _line(means: dict[int, float], low: float, high: float, rows: int) -> list[tuple[int, int]]:
    """The dots `(row, column)` of a line through the means. Row 0 is at the top."""

    def row_of(value: float) -> int:
        return round((high - value) / (high - low) * (rows - 1)) if high > low else rows // 2

    dots = [(row_of(value), column) for column, value in means.items()]
    joined = dots[:1]
    for (row, column), (next_row, next_column) in pairwise(dots):
        for at in range(column + 1, next_column + 1):
            to = row + round((next_row - row) * (at - column) / (next_column - column))
            before = joined[-1][0]
            # A steep part is a vertical stroke in the later column.
            stroke = range(before + 1, to + 1) if to > before else range(before - 1, to - 1, -1)
            joined += [(each, at) for each in (*stroke, *(() if stroke else (to,)))]
    return joined


def _marked(dots: Sequence[tuple[int, int]], across: int, down: int) -> dict[tuple[int, int], int]:
    """Cell `(row, column)` -> the bits of its dots."""
    cells: dict[tuple[int, int], int] = {}
    for row, column in dots:
        cell = (row // down, column // across)
        cells[cell] = cells.get(cell, 0) | _DOTS[row % down][column % across]
    return cells


def _character(bits: int, *, ascii_only: bool) -> str:
    if not bits:
        return " "
    return "*" if ascii_only else chr(_BLANK + bits)
