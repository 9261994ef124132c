"""How often to copy the state into the keepers' memory, from what a copy and a step take."""

import math

SHARE = 0.02
"""of training time that copies may take"""


def copy_interval(copy_s: float, step_s: float, share: float = SHARE) -> int:
    """The fewest steps between two copies for which copies take at most `share` of the time.

    Args:
        copy_s: seconds for which a copy stops training, 0 or more.
        step_s: seconds per step, above 0.
        share: between 0 and 1.

    Raises:
        ValueError: a number is out of its range.
    """
    if not (0 <= copy_s < math.inf and 0 < step_s < math.inf and 0 < share < 1):
        raise ValueError(f"no interval for {copy_s=}, {step_s=}, {share=}")
    # Of n steps and a copy, the copy takes at most the share.
    return max(1, math.ceil(copy_s * (1 / share - 1) / step_s))
