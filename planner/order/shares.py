"""Divides a whole number in proportion to weights, exact to one."""

from collections.abc import Sequence
from fractions import Fraction


def shares(total: int, weights: Sequence[int | Fraction]) -> tuple[int, ...]:
    """Whole numbers in proportion to the weights. Each differs from its exact share by less than one.

    This is the method of the largest remainder. Of equal remainders the first one wins.

    Args:
        total: the sum of the result, 0 or more.
        weights: 0 or more each, with a sum above 0.
    """
    whole = sum(weights, Fraction(0))
    exact = [Fraction(total) * weight / whole for weight in weights]
    found = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: found[i] - exact[i])
    for i in by_remainder[: total - sum(found)]:
        found[i] += 1
    return tuple(found)
