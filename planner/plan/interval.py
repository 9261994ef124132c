"""How often to commit, from the measured rate of losses and the cost of a save, and how often to copy the state."""

import math

from planner.events.saves import MeasuredInterval

# The prior: one loss without notice in one hour. Spot traces of groups of 12 to 24 nodes (Bamboo, Parcae) show 400 to
# 3,000 s between losses of any kind. Most of those have notice and cost nothing. On-demand machines last for weeks.
# With d = 1 s, an estimate 4 times too low or too high costs a quarter more than the best interval would.
_PRIOR_LOSSES = 1
_PRIOR_S = 3600.0
# Where this limit applies, losses are less than five saves apart, and no interval makes good progress.
_MOST_SAVING = 0.25

COPY_SHARE = 0.02
"""of training time that copies into the keepers' memory may take"""


def checkpoint_interval(
    *, save_s: float, step_s: float, losses: int, observed_s: float, write_s: float = 0.0
) -> MeasuredInterval:
    """The commit interval that loses least time to saves and to repeated work, in whole steps, at least 1.

    mean time between losses   M = (observed + 1 h) / (losses + 1)
    interval                   T = sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d   if d < 2M, else M

    with d the seconds that a save costs training. The first factor is Young's (1974, CACM 17:530), the rest
    Daly's (2006, FGCS 22:303). T is the work between two saves, never less than the time to write one.

    Args:
        save_s: seconds that one save costs training: the pause, and slower steps beside its write. 0 or more.
        step_s: seconds per optimizer step, above 0.
        losses: number of times that a worker left without notice. With notice, a commit comes first and nothing is
            lost.
        observed_s: seconds over which the losses were counted.
        write_s: seconds to write a save in the background, 0 or more. Two are never written at once.

    Raises:
        ValueError: a number is out of its range.
    """
    if not (0 <= save_s < math.inf and 0 < step_s < math.inf and losses >= 0 and 0 <= observed_s < math.inf):
        raise ValueError(f"no interval for {save_s=}, {step_s=}, {losses=}, {observed_s=}")
    if not 0 <= write_s < math.inf:
        raise ValueError(f"no interval for {write_s=}")
    between_losses_s = (observed_s + _PRIOR_S) / (losses + _PRIOR_LOSSES)
    least_s = save_s * (1 / _MOST_SAVING - 1)
    # Not below the time to write a save, or the next one would wait for it.
    steps = max(1, round(max(_daly_s(save_s, between_losses_s), least_s) / step_s), math.ceil(write_s / step_s))
    return MeasuredInterval(
        steps=steps,
        work_s=steps * step_s,
        save_s=save_s,
        write_s=write_s,
        between_losses_s=between_losses_s,
        losses=losses,
        observed_s=observed_s,
    )


def copy_interval(copy_s: float, step_s: float, share: float = COPY_SHARE) -> int:
    """The fewest steps between two copies into the keepers' memory for which they take at most `share` of the time.

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


def _daly_s(save_s: float, between_losses_s: float) -> float:
    """Seconds of work between two saves."""
    half = save_s / (2 * between_losses_s)
    if half >= 1:
        return between_losses_s
    return math.sqrt(2 * save_s * between_losses_s) * (1 + math.sqrt(half) / 3 + half / 9) - save_s
