"""Curves of at most some hundred points, from columns of any length. Minimum and maximum of each point are kept."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, fsum

MOST_POINTS = 400
"""of a curve, unless it is divided into more generations than that"""
_SHORTEST_S = 1e-9
# A picture and a mean cannot be computed of values near the end of floats.
_LARGEST = 1e100


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A curve. All four have one length. A point stands for one value or for several in a row."""

    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()
    """means"""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether each point is one value."""
        return self.low == self.high

    def thinned(self, most: int) -> "Curve":
        """The same curve with at most `most` points. Each keeps the minimum and the maximum of those it replaces."""
        if len(self.x) <= most:
            return self
        size = ceil(len(self.x) / most)
        parts = [slice(at, at + size) for at in range(0, len(self.x), size)]
        return Curve(
            x=tuple(_mean(self.x[part]) for part in parts),
            y=tuple(_mean(self.y[part]) for part in parts),
            low=tuple(min(self.low[part]) for part in parts),
            high=tuple(max(self.high[part]) for part in parts),
        )


class Column:
    """A growing column of numbers with ascending steps, eight bytes each. Steps that were undone are cut off."""

    def __init__(self) -> None:
        self.steps = array("Q")  # without a sign, because the last step of a forged record may be 2^63 - 1
        self.values = array("d")

    def add(self, step: int, value: float) -> None:
        """Add a value. Steps ascend."""
        self.steps.append(step)
        self.values.append(value)

    def cut(self, step: int) -> None:
        """Remove the values at `step` and after it."""
        if self.steps and self.steps[-1] >= step:
            end = bisect_left(self.steps, step)
            del self.steps[end:]
            del self.values[end:]

    def curve(self, most: int = MOST_POINTS) -> Curve:
        """Its values by their steps."""
        return curve(self.steps, self.values, most=most)


class StepTable:
    """Growing columns that have a value for every step, eight bytes each. Steps that were undone are cut off."""

    def __init__(self, *names: str) -> None:
        self.steps = array("Q")
        self._columns = {name: array("d") for name in names}
        self._arrays = tuple(self._columns.values())

    def add(self, step: int, *values: float) -> None:
        """Add a step with a value for each column, in their order."""
        self.steps.append(step)
        for column, value in zip(self._arrays, values, strict=True):
            column.append(value)

    def cut(self, step: int) -> None:
        """Remove the values at `step` and after it."""
        end = bisect_left(self.steps, step)
        del self.steps[end:]
        for column in self._arrays:
            del column[end:]

    def __getitem__(self, name: str) -> "array[float]":
        """The column of a name."""
        return self._columns[name]

    def curve(self, name: str) -> Curve:
        """A column by its steps."""
        return curve(self.steps, self._columns[name])


def curve(x: Sequence[float], y: Sequence[float], *, breaks: Iterable[int] = (), most: int = MOST_POINTS) -> Curve:
    """Make a curve of two columns of one length.

    Args:
        x: where each value stands.
        y: the values.
        breaks: indices at which a new point begins, so that no point mixes values from both sides.
        most: the number of points, plus one per break.
    """
    parts, y = _parts(len(x), breaks, most), _bounded(y)
    return Curve(
        x=tuple(_middle(x, part) for part in parts),
        y=tuple(_mean(y[part]) for part in parts),
        low=tuple(min(y[part]) for part in parts),
        high=tuple(max(y[part]) for part in parts),
    )


def rate_curve(
    x: Sequence[float], amounts: Sequence[float], seconds: Sequence[float], *, breaks: Iterable[int] = ()
) -> Curve:
    """Make a curve of amounts per second, each point the sum of its amounts by the sum of its seconds.

    Args:
        x: where each amount stands.
        amounts: what was done.
        seconds: how long it took.
        breaks: indices at which a new point begins.
    """
    seconds = _bounded(seconds)
    each = array("d", (amount / max(spent, _SHORTEST_S) for amount, spent in zip(amounts, seconds, strict=True)))
    parts = _parts(len(x), breaks, MOST_POINTS)
    return Curve(
        x=tuple(_middle(x, part) for part in parts),
        y=tuple(fsum(amounts[part]) / max(fsum(seconds[part]), _SHORTEST_S) for part in parts),
        low=tuple(min(each[part]) for part in parts),
        high=tuple(max(each[part]) for part in parts),
    )


def _parts(length: int, breaks: Iterable[int], most: int) -> list[slice]:
    """`[0, length)` in parts of one size. A part ends early at a break."""
    size = max(ceil(length / most), 1)
    edges = sorted({0, length, *(at for at in breaks if 0 < at < length)})
    return [slice(at, min(at + size, end)) for start, end in pairwise(edges) for at in range(start, end, size)]


def _bounded(values: Sequence[float]) -> Sequence[float]:
    """The values, those beyond 1e100 as 1e100."""
    if max(map(abs, values), default=0.0) <= _LARGEST:
        return values
    return array("d", (min(max(value, -_LARGEST), _LARGEST) for value in values))


def _middle(values: Sequence[float], part: slice) -> float:
    return float(values[part.start] + values[part.stop - 1]) / 2


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
