"""How many workers the cluster could hold over time, and how long such a count lasts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Older times say little about the next one: a calm morning may be followed by a flapping evening. With fewer, times
# that almost pay would never outweigh the one forecast that newcomers stay (`planner.plan.growth`).
_REMEMBERED = 16


@dataclass(frozen=True, kw_only=True)
class CapacityAt:
    """From `time_s` until the next entry, the cluster can hold `world_size` workers."""

    time_s: float
    """on any monotonic clock"""
    world_size: int
    """0 or more, without nodes that have received notice"""
    steady: int | None = None
    """after a fall: the workers on nodes that had been there longer than each one that left. A group on them would not
    have been hit. None if not known"""


@dataclass(frozen=True, kw_only=True)
class AvailabilityHistory:
    """The intervals in which the cluster could hold a worker count or more."""

    start_s: float
    """start of the current interval"""
    past_spells: tuple[float, ...]
    """lengths in seconds of at most sixteen earlier intervals, oldest first"""


def check(capacity: Sequence[CapacityAt], now_s: float) -> None:
    """Check a capacity history.

    Raises:
        ValueError: it is empty, out of order, ends after `now_s`, or holds a count below 0.
    """
    times = [entry.time_s for entry in capacity]
    if not times:
        raise ValueError("the capacity history is empty: it needs at least the current count")
    if any(earlier > later for earlier, later in pairwise([*times, now_s])):
        raise ValueError(f"the capacity history is not in order of time up to now: {[*times, now_s]}")
    if any(entry.world_size < 0 or (entry.steady or 0) < 0 for entry in capacity):
        raise ValueError("the capacity history has a count below 0")


def available_times(capacity: Sequence[CapacityAt], world_size: int, than: int = 0) -> AvailabilityHistory:
    """The intervals with room for `world_size` workers or more. The last entry of `capacity` must have that room.

    Of the past ones, those whose end would have hit a group of `than` workers on the oldest nodes, too, are left out:
    they say nothing against `world_size` workers in its place.
    """
    ended: list[float] = []
    start_s, inside = 0.0, False
    for entry in capacity:
        if entry.world_size >= world_size and not inside:
            start_s, inside = entry.time_s, True
        elif entry.world_size < world_size and inside:
            if entry.steady is None or entry.steady >= than:
                ended.append(entry.time_s - start_s)
            inside = False
    assert inside, f"there is no room for {world_size} workers now"
    return AvailabilityHistory(start_s=start_s, past_spells=tuple(ended[-_REMEMBERED:]))


def rise_times(capacity: Sequence[CapacityAt]) -> tuple[float, ...]:
    """Times in seconds at which the count rose, oldest first: at most seventeen, with sixteen gaps between them."""
    times = [later.time_s for earlier, later in pairwise(capacity) if later.world_size > earlier.world_size]
    return tuple(times[-_REMEMBERED - 1 :])
