"""How many rows an epoch uses of each set of a mixture, and which. Pure."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from planner.errors import DataError
from planner.job import MixtureSet
from planner.order.shares import shares

# The most that `fraction` can say, too. More rows than fit in memory are a slip.
_MOST_TIMES = 1000


def used_rows(sets: Sequence[MixtureSet], found: Sequence[int]) -> tuple[int, ...]:
    """How many rows of each set an epoch uses.

    Args:
        sets: the sets of a mixture.
        found: the number of rows that each set has.

    Raises:
        DataError: no row of a set would be used, or each more than a thousand times.
    """
    if sets[0].weight is not None:
        used = _by_weight([Fraction(str(each.weight)) for each in sets], found)
    else:
        used = tuple(_used(each, count) for each, count in zip(sets, found, strict=True))
    for each, count, num_rows in zip(sets, used, found, strict=True):
        if not count or not num_rows:
            raise DataError.of("data.mixture", _nothing_left(each, num_rows))
        if count > _MOST_TIMES * num_rows:
            raise DataError.of(
                "data.mixture",
                f"{each.name} has {num_rows} rows, and rows: {count} would use each more than {_MOST_TIMES} times. "
                f"Write at most {_MOST_TIMES * num_rows}",
            )
    return used


def repeats(sets: Sequence[MixtureSet], found: Sequence[int], used: Sequence[int]) -> tuple[str, ...]:
    """A note for each set of which an epoch uses rows more than once."""
    return tuple(
        f"{each.name}: an epoch uses {count} rows of the {num_rows} that it has. If eval.samples are held out, other "
        "copies of their rows are trained on. Rows of eval.data are apart"
        for each, count, num_rows in zip(sets, used, found, strict=True)
        if count > num_rows
    )


def _nothing_left(each: MixtureSet, num_rows: int) -> str:
    if not num_rows:
        return f"{each.name} has no rows. Remove the set"
    key, share = ("weight", each.weight) if each.weight is not None else ("fraction", each.fraction)
    return f"{each.name}: {key} {share:g} takes none of its {num_rows} rows. Write a larger {key}, or remove the set"


def _used(each: MixtureSet, num_rows: int) -> int:
    if each.rows is not None:
        return each.rows
    # In floating point, as alignment-handbook and TRL compute it.
    return num_rows if each.fraction is None else int(num_rows * each.fraction)


def _by_weight(weights: Sequence[Fraction], found: Sequence[int]) -> tuple[int, ...]:
    """The most rows in proportion to the weights of which no set has too few."""
    whole = sum(weights, Fraction(0))
    total = int(min(count * whole / weight for weight, count in zip(weights, found, strict=True)))
    used = shares(total, weights)
    while any(share > count for share, count in zip(used, found, strict=True)):
        # Rounding up asked a set for one row more than it has.
        total -= 1
        used = shares(total, weights)
    return used


def times_used(num_rows: int, used: int, seed: int) -> NDArray[np.int64]:
    """How often an epoch uses each row of a set, shape `(num_rows,)`. Two rows differ by at most one.

    The rows that are used once more than others are those of `Dataset.shuffle(seed).select(range(n))` of the datasets
    library.
    """
    every, rest = divmod(used, num_rows)
    times = np.full(num_rows, every, np.int64)
    if rest:
        # The generator and the call of the datasets library. If another numpy chose other rows, the fingerprint of the
        # data would say so.
        times[np.random.default_rng(seed).permutation(num_rows)[:rest]] += 1
    return times
