"""Decides whether to keep the world size, resize, wait or pause, and gives the reason. `planner.elastic` acts on it.

A run must shrink when workers leave. It grows only after four questions. Is a step faster there? Does the rest of the
run win the pause back? Does the time until the next forced restart win it back, which takes all nodes anyway? Have such
workers stayed long enough so far to pay for a grow and a shrink?
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from planner.events import sizing
from planner.events.event import Event
from planner.plan.capacity_history import CapacityAt, available_times, check, rise_times
from planner.plan.factory import BatchSizes, make_plan
from planner.plan.forced_restarts import NONE_FORCED, ForcedRestarts
from planner.plan.growth import Growth, ResizeCost
from planner.plan.node_packing import WorkerRange
from planner.plan.plan import Plan
from planner.plan.speed import Speeds

# Medians of the same step differ by this much from one generation to the next, so a smaller gain cannot be seen.
_LEAST_FASTER = 0.02
# Before the first measurement. The plan's cost leaves out the fixed time of a step, so it is too optimistic.
_LEAST_FASTER_UNMEASURED = 1.5


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Everything that the decision depends on.

    Raises:
        ValueError: the history is empty, out of order or ends after `now_s`, or another number is out of range.
    """

    plan: Plan
    """the plan that runs now"""
    capacity: Sequence[CapacityAt]
    """how many workers the cluster could hold, running ones included. The last entry holds now."""
    speeds: Speeds
    cost: ResizeCost
    remaining_steps: int
    workers_min: int
    workers_max: int
    now_s: float
    """on the clock of `capacity`"""
    forced: ForcedRestarts = NONE_FORCED
    """on the same clock"""
    group_started_s: float = math.inf
    """when the workers that run now were started, on the same clock. Infinite: not known"""

    def __post_init__(self) -> None:
        check(self.capacity, self.now_s)
        if self.remaining_steps < 0 or not 1 <= self.workers_min <= self.workers_max:
            raise ValueError(f"{self.remaining_steps=}, {self.workers_min=}, {self.workers_max=}")

    @property
    def usable(self) -> int:
        """The most workers that the run can have now."""
        return min(self.capacity[-1].world_size, self.workers_max)

    @property
    def step_s(self) -> float:
        """Seconds per step at the current world size."""
        return self.speeds.seconds_per_step(self.plan)

    @property
    def remaining_s(self) -> float:
        """Seconds until the run ends at the current world size."""
        return self.remaining_steps * self.step_s

    def useful(self, most: int) -> int:
        """The best count if there is room for `most` workers: `worth_asking`, within the job's bounds."""
        return max(self.workers_min, worth_asking(self.plan, min(most, self.workers_max)))


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do. The caller does it and records it."""

    kind: Literal["keep", "resize", "wait", "pause"]
    """`pause`: there is room for fewer workers than the job may run with"""
    world_size: int
    """the count to continue with: the current one for `keep` and `wait`, 0 for `pause`"""
    until_s: float
    """when to ask again if nothing changes: a time for `wait`, `now_s` for `resize`, else infinite"""
    reason: Event
    """a kind of `planner.events.sizing`"""


def worth_asking(plan: Plan, most: int) -> int:
    """The smallest count with the step cost of `most` workers: what to ask an autoscaler for.

    With G=32 it is 11 for 15: at both, a step takes the time of 3 samples. At 16 it takes the time of 2.

    Raises:
        ValueError: `most` is below 1.
    """
    if most < 1:
        raise ValueError(f"no workers to choose from: {most}")
    return plan.at(most).fewest_workers_as_fast


def useful_workers(sizes: BatchSizes, workers: WorkerRange, room: int) -> int:
    """The smallest worker count in the range that is as fast as all workers that there is `room` for.

    Raises:
        ValueError: `room` is below 1.
    """
    return max(workers.least, worth_asking(make_plan(sizes, workers.most), min(room, workers.most)))


def revise(situation: Situation) -> Decision:
    """Keep, resize now, wait, or pause. Pure: equal situations give equal decisions.

    While capacity does not change and no restart is forced, waits for one count end after at most
    `Growth.longest_wait_s`, or twice `Growth.needed_s`.
    """
    now, usable = situation, situation.usable
    if usable < now.workers_min:
        return _pause(now)
    if usable < now.plan.world_size:
        return _shrink(now)
    levels = {min(change.world_size, usable) for change in now.capacity if change.world_size >= 1}
    counts = sorted({count for level in levels if (count := now.useful(level)) > now.plan.world_size}, reverse=True)
    if not counts:
        return _nothing_to_gain(now)
    if not now.speeds.measured:
        return _grow_unmeasured(now, counts[0])
    judged = [_grow(now, count) for count in counts]
    resizes = [decision for decision in judged if decision.kind == "resize"]
    waits = sorted((d for d in judged if d.kind == "wait"), key=lambda d: d.until_s)
    return [*resizes, *waits, *judged][0]


def _pause(now: Situation) -> Decision:
    reason = sizing.TooLittleRoom(room=now.usable, least=now.workers_min)
    return Decision(kind="pause", world_size=0, until_s=math.inf, reason=reason)


def _shrink(now: Situation) -> Decision:
    count = now.useful(now.usable)
    return _resize(now, count, sizing.WorkersLeave(room=now.usable, move=_move(now, count)))


def _resize(now: Situation, count: int, reason: Event) -> Decision:
    return Decision(kind="resize", world_size=count, until_s=now.now_s, reason=reason)


def _keep(now: Situation, reason: Event) -> Decision:
    return Decision(kind="keep", world_size=now.plan.world_size, until_s=math.inf, reason=reason)


def _wait(now: Situation, until_s: float, reason: Event) -> Decision:
    return Decision(kind="wait", world_size=now.plan.world_size, until_s=until_s, reason=reason)


def _nothing_to_gain(now: Situation) -> Decision:
    """Keep, because no larger count is tried: there are no more workers, or a step is not shorter with them."""
    size, usable = now.plan.world_size, now.usable
    if usable == size:
        return _keep(now, sizing.UsesAll(size=size))
    return _keep(now, sizing.NotNeeded(size=size, room=usable, samples=now.plan.step_cost))


def _move(now: Situation, count: int) -> sizing.Move:
    """What `count` workers would change."""
    plan, is_measured = now.plan.at(count), bool(now.speeds.measured)
    return sizing.Move(
        size=now.plan.world_size,
        to=count,
        samples=now.plan.step_cost,
        to_samples=plan.step_cost,
        step_s=now.step_s if is_measured else None,
        to_step_s=now.speeds.seconds_per_step(plan) if is_measured else None,
        on_one_machine=now.speeds.on_one_machine,
    )


def _grow_unmeasured(now: Situation, count: int) -> Decision:
    """Judge a larger count before any step was measured, by the plan's cost.

    It must be 1.5 times as fast, and must have been the best count for as long as a pause takes. Where a restart was
    forced already, also for as long as the group had lived before: a start takes longer than that, and would be in vain
    if such room lasts no longer.
    """
    move = _move(now, count)
    if now.plan.work / now.plan.at(count).work < _LEAST_FASTER_UNMEASURED:
        reason = sizing.NotMeasured(move=move, least=_LEAST_FASTER_UNMEASURED)
        return _wait(now, now.now_s + max(1.0, now.cost.grow_s), reason)
    since_s = _best_since_s(now, count)
    lived_s = since_s - now.group_started_s if now.forced.times else 0.0
    quiet_s = since_s + max(now.cost.grow_s, lived_s)
    if quiet_s > now.now_s:
        return _wait(now, quiet_s, sizing.RoomJustChanged(move=move, wait_s=quiet_s - now.now_s))
    return _resize(now, count, sizing.PaysByPlan(move=move))


def _best_since_s(now: Situation, count: int) -> float:
    """The time since which `count` has been the best one. Changes of capacity that do not change that are ignored."""
    same = takewhile(lambda c: c.world_size >= 1 and now.useful(c.world_size) == count, reversed(now.capacity))
    return min((change.time_s for change in same), default=now.now_s)


def _grow(now: Situation, count: int) -> Decision:
    """Judge one larger count that the cluster has room for."""
    step_s, new_step_s = now.step_s, now.speeds.seconds_per_step(now.plan.at(count))
    move = _move(now, count)
    if new_step_s > (1 - _LEAST_FASTER) * step_s:
        return _keep(now, sizing.NotFaster(move=move, least=_LEAST_FASTER))
    growth = Growth(
        step_s=step_s,
        new_step_s=new_step_s,
        remaining_s=now.remaining_s,
        cost=now.cost,
        exposure=count / now.plan.world_size - 1,
    )
    times = {"win_back_s": growth.win_back_s, "pause_s": now.cost.grow_s, "remaining_s": now.remaining_s}
    if not growth.pays:
        return _keep(now, sizing.NotWonBack(move=move, **times))
    until_s, reason = _ready(now, growth, move)
    return _wait(now, until_s, reason) if until_s > now.now_s else _resize(now, count, sizing.Pays(move=move, **times))


def _ready(now: Situation, growth: Growth, move: sizing.Move) -> tuple[float, Event]:
    """When to resize, and why then: the latest of three times."""
    room = available_times(now.capacity, move.to, than=move.size)
    stayed_s = room.start_s + growth.wait_s(room.past_spells, now.now_s - room.start_s)
    more_may_come = now.useful(now.workers_max) > now.useful(now.usable)
    rises = rise_times(now.capacity) if more_may_come else ()
    settled_s = growth.settled_s(rises, room.start_s)
    calm_s = now.forced.expected_from_s(growth.needed_s, now.now_s)
    if calm_s > max(stayed_s, settled_s, now.now_s):
        return calm_s, sizing.RestartsTooOften(
            move=move,
            wait_s=calm_s - now.now_s,
            expected_s=now.forced.expected_s(now.now_s),
            needed_s=growth.needed_s,
        )
    if settled_s > max(stayed_s, now.now_s):
        return settled_s, sizing.MoreMayCome(move=move, wait_s=settled_s - now.now_s)
    too_short = sizing.StaysTooShort(
        move=move,
        wait_s=stayed_s - now.now_s,
        num_short=sum(lasted < growth.break_even_s for lasted in room.past_spells),
        num_times=len(room.past_spells),
        break_even_s=growth.break_even_s,
        pauses_s=growth.cost.grow_s + growth.cost.shrink_s,
    )
    return stayed_s, too_short
