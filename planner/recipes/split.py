"""How equal splits go: what slicing keeps, what repeats, which groups are cut, and what divides. Pure arithmetic.

Letters: B global batch, m micro-batch per GPU, A accumulation steps, W GPUs.
"""

from collections.abc import Callable, Sequence
from math import isqrt

Span = tuple[int, int]
"""a half-open range of positions in a batch"""

# As far up as a nearest count is looked for.
_MOST_GPUS = 4096


def dropped_by_slicing(batch: int, accumulation: int, gpus: int) -> list[Span]:
    """Positions of a batch that no GPU computes when it is cut first into A, then into W equal slices.

    Each of A slices has floor(B / A) rows, of which W * floor(floor(B / A) / W) are used: the rest of each slice, and
    what A leaves over at the end. Used in all: A * W * floor(B / (A * W)).
    """
    chunk = batch // accumulation
    used = chunk // gpus * gpus
    spans = [(start * chunk + used, (start + 1) * chunk) for start in range(accumulation)]
    spans.append((accumulation * chunk, batch))
    return joined([span for span in spans if span[0] < span[1]])


def joined(spans: Sequence[Span]) -> list[Span]:
    """The same positions, neighbours together; `spans` rise."""
    whole: list[Span] = []
    for first, end in spans:
        if whole and whole[-1][1] == first:
            whole[-1] = (whole[-1][0], end)
        else:
            whole.append((first, end))
    return whole


def used_by_slicing(batch: int, accumulation: int, gpus: int) -> int:
    """Rows of a batch that are computed: A * W * floor(B / (A * W))."""
    return accumulation * gpus * (batch // (accumulation * gpus))


def repeats_of_even_batches(rows: int, gpus: int, micro: int) -> int:
    """Rows that one epoch visits twice: accelerate loops back to the start until every GPU has as many full batches.

    Batch k goes to GPU k mod W, so an epoch is a multiple of W * m rows, unless one GPU takes them all.
    """
    return 0 if gpus == 1 else -rows % (gpus * micro)


def groups_cut(num_groups: int, group: int, pool: int) -> int:
    """Groups of `group` neighbours that do not lie within one pool of `pool` neighbours, of `num_groups`."""
    return sum(first // pool != (first + group - 1) // pool for first in range(0, num_groups * group, group))


def divisors(number: int) -> list[int]:
    """All of them, rising."""
    small = [candidate for candidate in range(1, isqrt(number) + 1) if number % candidate == 0]
    return sorted({*small, *(number // candidate for candidate in small)})


def accumulation_for(batch: int, gpus: int, most: int | None, is_possible: Callable[[int, int], bool]) -> int | None:
    """The fewest accumulation steps A with m = B / (W * A) whole, at most `most`, and `is_possible(m, A)`; or none."""
    if batch % gpus:
        return None
    share = batch // gpus
    fitting = (a for a in divisors(share) if (most is None or share // a <= most) and is_possible(share // a, a))
    return next(fitting, None)


def nearest_counts(gpus: int, is_exact: Callable[[int], bool], most: int) -> tuple[int | None, int | None]:
    """The next count below and above `gpus` that is exact, if there is one up to `most`."""
    below = next((count for count in range(gpus - 1, 0, -1) if is_exact(count)), None)
    above = next((count for count in range(gpus + 1, min(most, _MOST_GPUS) + 1) if is_exact(count)), None)
    return below, above


def nearest_multiple(number: int, of: int) -> int:
    """The multiple nearest to `number`, at least one; of two as near, the larger."""
    return max((number + of // 2) // of, 1) * of


def percent(found: int, wanted: int) -> float:
    """How far off, in percent."""
    return (found - wanted) / wanted * 100
