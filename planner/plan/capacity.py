"""How many workers the cluster could hold over time, and how long such a count lasts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Spells further back say little about the next: what was a calm morning may be a flapping evening. With fewer, spells
# that only just do not pay would never outweigh the one forecast that newcomers stay (`planner.plan.growth`).
_REMEMBERED = 16


@dataclass(frozen=True, kw_only=True)
class CapacityAt:
    """From `time_s` on, until the next change, `world_size` workers have a place that is not about to go."""

    time_s: float
    """on any one clock that never goes back"""
    world_size: int
    """0 or more; nodes that have had notice are already left out"""


@dataclass(frozen=True, kw_only=True)
class AvailableTimes:
    """The times at which there was room for a count or more."""

    start_s: float
    """when the spell began that is not over yet"""
    ended_s: tuple[float, ...]
    """how long those before it lasted, oldest first; the last sixteen"""


def check(capacity: Sequence[CapacityAt], now_s: float) -> None:
    """What a history must be: not empty, in order, not from the future, counts of 0 or more.

    Raises:
        ValueError: it is not.
    """
    times = [change.time_s for change in capacity]
    if not times:
        raise ValueError("a history of capacity has at least the count that is there now")
    if any(earlier > later for earlier, later in pairwise([*times, now_s])):
        raise ValueError(f"a history of capacity is in order of time and ends before now: {[*times, now_s]}")
    if any(change.world_size < 0 for change in capacity):
        raise ValueError("a capacity is 0 workers or more")


def available_times(capacity: Sequence[CapacityAt], world_size: int) -> AvailableTimes:
    """Of room for `world_size` or more; the last change in `capacity` must be such room."""
    ended: list[float] = []
    start_s, inside = 0.0, False
    for change in capacity:
        if change.world_size >= world_size and not inside:
            start_s, inside = change.time_s, True
        elif change.world_size < world_size and inside:
            ended.append(change.time_s - start_s)
            inside = False
    assert inside, f"there is no room for {world_size} workers now"
    return AvailableTimes(start_s=start_s, ended_s=tuple(ended[-_REMEMBERED:]))


def rises_s(capacity: Sequence[CapacityAt]) -> tuple[float, ...]:
    """When the count rose, oldest first; the last seventeen, so sixteen gaps between them."""
    times = [later.time_s for earlier, later in pairwise(capacity) if later.world_size > earlier.world_size]
    return tuple(times[-_REMEMBERED - 1 :])
