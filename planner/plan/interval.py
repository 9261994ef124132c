"""How often to commit: as often as losses and the price of a save make worth while."""

import math
from dataclasses import dataclass

from planner.base.text import counted, duration

# Before anything was seen: one loss without notice in an hour, counted as if it had been seen. Spot traces of groups
# of 12 to 24 nodes (Bamboo, Parcae) show 400 to 3,000 s between losses of any kind, of which most have notice and
# cost nothing; machines that are paid in full last for weeks. With d = 1 s, an estimate 4 times too low or too high
# costs a quarter more than the best interval would: sqrt(2 d M) forgives.
_PRIOR_LOSSES = 1
_PRIOR_S = 3600.0
# Where this binds, a loss comes within five saves' time, and no interval makes good progress.
_MOST_SAVING = 0.25


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Steps between commits, and why."""

    steps: int
    reason: str


def checkpoint_interval(*, save_s: float, step_s: float, losses: int, observed_s: float) -> Interval:
    """The interval that loses least to saving and to doing work again, in whole steps, at least 1.

    mean time between losses   M = (observed + 1 h) / (losses + 1)
    interval                   T = sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d   if d < 2M, else M

    with d the seconds for which a save holds training up. The first factor is Young's (1974, CACM 17:530), the rest
    Daly's (2006, FGCS 22:303), who counts T as the work between two saves.

    Args:
        save_s: for which one save holds training up; 0 or more.
        step_s: per optimizer step, above 0.
        losses: times that a worker went without notice; with notice a commit comes first, and nothing is lost.
        observed_s: for how long they were counted.

    Raises:
        ValueError: a number is out of its range.
    """
    if not (0 <= save_s < math.inf and 0 < step_s < math.inf and losses >= 0 and 0 <= observed_s < math.inf):
        raise ValueError(f"no interval for {save_s=}, {step_s=}, {losses=}, {observed_s=}")
    between_losses_s = (observed_s + _PRIOR_S) / (losses + _PRIOR_LOSSES)
    least_s = save_s * (1 / _MOST_SAVING - 1)
    steps = max(1, round(max(_daly_s(save_s, between_losses_s), least_s) / step_s))
    work_s = steps * step_s
    overhead = save_s / (work_s + save_s)
    reason = (
        f"about every {duration(work_s)}, {counted(steps, 'step')} now: a save takes {duration(save_s)}, "
        f"{overhead:.1%} of the time; a loss without notice, of which one in {duration(between_losses_s)} is expected, "
        f"undoes {duration(work_s / 2)} on average ({losses} lost without notice in {duration(observed_s)} so far, and "
        "one an hour assumed beforehand)"
    )
    return Interval(steps=steps, reason=reason)


def _daly_s(save_s: float, between_losses_s: float) -> float:
    """Seconds of work between two saves."""
    half = save_s / (2 * between_losses_s)
    if half >= 1:
        return between_losses_s
    return math.sqrt(2 * save_s * between_losses_s) * (1 + math.sqrt(half) / 3 + half / 9) - save_s
