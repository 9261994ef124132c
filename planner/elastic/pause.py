"""What a resize costs: how long training stands still, and which work is done again."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class UnmeasuredPause:
    """The next group is not the outcome of a resize whose cost says something of the next one."""


@dataclass(frozen=True, kw_only=True)
class PlannedPause:
    """All workers have parked, and another group is to be started."""

    from_size: int
    commit_s: float
    decided_s: float
    """when the new group was decided on"""


@dataclass(frozen=True, kw_only=True)
class ForcedPause:
    """Workers were lost, or given up: steps since the last commit are done again."""

    from_size: int
    in_vain_s: float
    """work on a step that was not finished"""
    decided_s: float
    """when the new group was decided on; time spent waiting for nodes before that is no cost of a resize"""
    num_steps: int
    """steps that were done then"""


Pause = UnmeasuredPause | PlannedPause | ForcedPause


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a resize cost, known after the first step of the new group."""

    seconds: float
    num_again: int
    """steps that are done again"""
    is_growth: bool


def price(
    pause: PlannedPause | ForcedPause, *, size: int, step: int, step_ended_s: float, first_step_s: float, step_s: float
) -> Price:
    """What a resize cost, when the first step after it is done.

        price = commit, or work in vain + decision to the first step's begin + steps done again

    Args:
        pause: how the group before it ended.
        size: workers of the new group.
        step: the number of its first step.
        step_ended_s: when that step was done.
        first_step_s: how long it took.
        step_s: seconds of a step at the size before.
    """
    stood_still_s = max(step_ended_s - first_step_s - pause.decided_s, 0.0)
    if isinstance(pause, PlannedPause):
        return Price(seconds=pause.commit_s + stood_still_s, num_again=0, is_growth=size > pause.from_size)
    again = max(pause.num_steps - step, 0)
    return Price(seconds=pause.in_vain_s + stood_still_s + again * step_s, num_again=again, is_growth=False)
