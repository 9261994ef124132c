"""Arithmetic of equal splits: which rows slicing drops or repeats, which groups it cuts, which counts divide a batch.

Letters: B global batch, m micro-batch per GPU, A accumulation steps, W GPUs.
"""

from collections.abc import Callable, Sequence
from math import isqrt

Span = tuple[int, int]
"""a half-open range of positions in a batch"""

# The largest count that the search for a nearest count tries.
_MOST_GPUS = 4096


def dropped_by_slicing(batch: int, accumulation: int, gpus: int) -> list[Span]:
    """Half-open ranges of positions that no GPU computes if a batch is cut into A slices, then each into W.

    Each of the A slices has floor(B / A) rows, of which W * floor(floor(B / A) / W) are used. The rest of each slice is
    dropped, and so are the B mod A rows at the end of the batch.
    """
    chunk = batch // accumulation
    used = chunk // gpus * gpus
    spans = [(start * chunk + used, (start + 1) * chunk) for start in range(accumulation)]
    spans.append((accumulation * chunk, batch))
    return joined([span for span in spans if span[0] < span[1]])


def joined(spans: Sequence[Span]) -> list[Span]:
    """Merges adjacent ranges. `spans` must be sorted."""
    whole: list[Span] = []
    for first, end in spans:
        if whole and whole[-1][1] == first:
            whole[-1] = (whole[-1][0], end)
        else:
            whole.append((first, end))
    return whole


def used_by_slicing(batch: int, accumulation: int, gpus: int) -> int:
    """The number of rows of a sliced batch that are computed: A * W * floor(B / (A * W))."""
    return accumulation * gpus * (batch // (accumulation * gpus))


def repeats_of_even_batches(rows: int, gpus: int, micro: int) -> int:
    """The number of rows that an epoch visits twice under accelerate's even_batches.

    accelerate repeats rows from the start until each GPU has the same number of full batches. Batch k goes to GPU
    k mod W, so an epoch is a multiple of W * m rows. Nothing repeats on one GPU.
    """
    return 0 if gpus == 1 else -rows % (gpus * micro)


def groups_cut(num_groups: int, group: int, pool: int) -> int:
    """How many of `num_groups` groups of `group` neighbours cross the border of a pool of `pool` neighbours."""
    return sum(first // pool != (first + group - 1) // pool for first in range(0, num_groups * group, group))


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, in ascending order."""
    small = [candidate for candidate in range(1, isqrt(number) + 1) if number % candidate == 0]
    return sorted({*small, *(number // candidate for candidate in small)})


def accumulation_for(batch: int, gpus: int, most: int | None, is_possible: Callable[[int, int], bool]) -> int | None:
    """The fewest accumulation steps A with a whole m = B / (W * A), m <= `most` and `is_possible(m, A)`, or None."""
    if batch % gpus:
        return None
    share = batch // gpus
    fitting = (a for a in divisors(share) if (most is None or share // a <= most) and is_possible(share // a, a))
    return next(fitting, None)


def nearest_counts(gpus: int, is_exact: Callable[[int], bool], most: int) -> tuple[int | None, int | None]:
    """The nearest exact counts below and above `gpus`, None where there is none up to min(`most`, 4096)."""
    below = next((count for count in range(gpus - 1, 0, -1) if is_exact(count)), None)
    above = next((count for count in range(gpus + 1, min(most, _MOST_GPUS) + 1) if is_exact(count)), None)
    return below, above


def nearest_multiple(number: int, of: int) -> int:
    """The positive multiple of `of` nearest to `number`, the larger one of two equally near."""
    return max((number + of // 2) // of, 1) * of


def percent(found: int, wanted: int) -> float:
    """The deviation of `found` from `wanted` in percent."""
    return (found - wanted) / wanted * 100
