"""What a resize costs: the time without training, and the steps that are done again."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NotAResize:
    """A pause that is not measured: it says nothing about the cost of the next resize."""


@dataclass(frozen=True, kw_only=True)
class PlannedPause:
    """A pause in which all workers have parked, and their last step is durable or in memory."""

    from_size: int
    durable_after_s: float
    """seconds from the end of the last step until it was durable: for a commit in flight, and the last one. If the step
    stayed in memory, until its copies were sealed"""
    decided_s: float
    """when the controller decided on the new group"""
    is_held: bool = False
    """whether the last step was handed over in memory"""


@dataclass(frozen=True, kw_only=True)
class ForcedPause:
    """A pause after workers were lost or given up. Steps since the last commit are done again."""

    from_size: int
    in_vain_s: float
    """seconds of work on the unfinished step"""
    decided_s: float
    """when the controller decided on the new group. Waiting for nodes before that is no cost of a resize"""


Pause = NotAResize | PlannedPause | ForcedPause


@dataclass(frozen=True, kw_only=True)
class Price:
    """The measured cost of one resize."""

    seconds: float
    """of training"""
    stood_still_s: float
    """the part of it from the decision to the start of the first step"""
    num_again: int
    """steps done again"""
    is_growth: bool


def price(
    pause: PlannedPause | ForcedPause,
    *,
    size: int,
    num_again: int,
    step_ended_s: float,
    first_step_s: float,
    step_s: float,
) -> Price:
    """The cost of a resize, computed after the first step of the new group.

        price = (last step until it is durable or in memory, or work in vain)
                + time from decision to start of the first step + steps done again

    Args:
        pause: how the previous group ended.
        size: workers of the new group.
        num_again: steps on record that it does again.
        step_ended_s: when its first step ended.
        first_step_s: how long that step took.
        step_s: seconds per step at the previous size.
    """
    stood_still_s = max(step_ended_s - first_step_s - pause.decided_s, 0.0)
    if isinstance(pause, PlannedPause):
        seconds, is_growth = pause.durable_after_s + stood_still_s, size > pause.from_size
        return Price(seconds=seconds, stood_still_s=stood_still_s, num_again=0, is_growth=is_growth)
    seconds = pause.in_vain_s + stood_still_s + num_again * step_s
    return Price(seconds=seconds, stood_still_s=stood_still_s, num_again=num_again, is_growth=False)
