"""Least squares over a few terms, each of which is 0 or more."""

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

# A term that explains less than this part of the largest total is rounding, and 0.
_NEGLIGIBLE = 1e-9
_LEAST_PIVOT = 1e-12


class Equation(NamedTuple):
    """`factors[0] * term[0] + factors[1] * term[1] + ... = total`, with a weight."""

    factors: tuple[float, ...]
    total: float
    weight: float


@lru_cache(maxsize=256)
def solved(equations: tuple[Equation, ...]) -> tuple[float, ...] | None:
    """The terms, each 0 or more, with the least weighed sum of squared errors. None if nothing solves the equations.

    A term without a factor above 0 in any equation is 0. Every set of terms that may be above 0 is tried, which is
    quick for up to five.
    """
    columns = list(zip(*(equation.factors for equation in equations), strict=True))
    scales = [max(map(abs, column)) for column in columns]
    used = [term for term, scale in enumerate(scales) if scale]
    least = _NEGLIGIBLE * max(equation.total for equation in equations)
    best: tuple[float, tuple[float, ...]] | None = None
    for number in range(len(used), 0, -1):
        for terms in combinations(used, number):
            found = _unbounded(equations, terms, scales)
            if found is None or min(value * scales[term] for term, value in found.items()) < least:
                continue
            values = tuple(found.get(term, 0.0) for term in range(len(scales)))
            error = _error(equations, values)
            if best is None or error < best[0]:
                best = error, values
        if best is not None and number == len(used):
            break  # no smaller set can be better
    return None if best is None else best[1]


def _error(equations: Sequence[Equation], values: Sequence[float]) -> float:
    return math.fsum(
        each.weight * (math.fsum(map(operator.mul, each.factors, values)) - each.total) ** 2 for each in equations
    )


def _unbounded(equations: Sequence[Equation], terms: Sequence[int], scales: Sequence[float]) -> dict[int, float] | None:
    """The values of some terms, of any sign, the others being 0. None if these terms cannot be told apart."""
    rows = [([each.factors[term] / scales[term] for term in terms], each.total, each.weight) for each in equations]
    size = range(len(terms))
    matrix = [[math.fsum(weight * row[i] * row[j] for row, _, weight in rows) for j in size] for i in size]
    right = [math.fsum(weight * row[i] * total for row, total, weight in rows) for i in size]
    solution = _eliminated(matrix, right)
    if solution is None:
        return None
    return {term: value / scales[term] for term, value in zip(terms, solution, strict=True)}


def _eliminated(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """The solution of a few linear equations, by Gauss with pivots. None if there is not exactly one."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        if abs(rows[pivot][column]) < _LEAST_PIVOT:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(size):
            if row != column:
                factor = rows[row][column] / rows[column][column]
                rows[row] = [ours - factor * theirs for ours, theirs in zip(rows[row], rows[column], strict=True)]
    return [rows[at][size] / rows[at][at] for at in range(size)]
