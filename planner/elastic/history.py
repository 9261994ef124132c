"""What one launch has learned from its worker groups: speeds, costs, failures, and how capacity came and went.

A `History` never changes: each event makes a new one. Times are seconds on one clock that never goes back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Self

from planner.base.text import counted, duration
from planner.errors import TrainingFailed
from planner.plan import BatchSizes, CapacityAt, ResizeCost, Speeds, make_plan

_REMEMBERED_CHANGES = 256
_REMEMBERED_STEPS = 20
_REMEMBERED_RESIZES = 5
# Failures that no lost node explains.
_MOST_FRUITLESS = 6
_MOST_FAILURES = 20
_FAILURES_WITHIN_S = 3600.0
# A node whose workers die so often within an hour is left out.
_NODE_FAILURES = 3
# Places that are counted but cannot be had (something else runs there, or workers do not come up) are tried again after
# so long, twice as long each time.
_HOLD_S, _HOLD_MOST_S = 30.0, 1800.0

Seconds = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class LastCommit:
    """The last commit: its seconds, and how many workers wrote it. 0 seconds: there was none yet."""

    seconds: float = 0.0
    world_size: int = 1


@dataclass(frozen=True, kw_only=True)
class GrowthHold:
    """No more than `world_size` workers are tried before `until_s`; the last hold was `seconds` long."""

    world_size: int = 0
    until_s: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class History:
    """One per launch."""

    sizes: BatchSizes
    default_cost: ResizeCost
    """of a resize, until one was measured"""
    capacity: tuple[CapacityAt, ...] = ()
    seconds: Mapping[int, Seconds] = field(default_factory=dict)
    """world size -> seconds per step, the last ones"""
    grow_s: Seconds = ()
    shrink_s: Seconds = ()
    """without training, that the last growths and shrinks cost"""
    lead_s: Seconds = ()
    """until the last newcomers were ready"""
    num_late_newcomers: int = 0
    """times in a row that newcomers were not ready in time"""
    eval_s: float = 0.0
    """of the last evaluation in any group; 0 before the first one"""
    first_step_s: float = 0.0
    """the longest that a group took from its start to its first step; 0 before the first of all"""
    step: int = 0
    total_steps: int = 0
    commit: LastCommit = LastCommit()
    hold: GrowthHold = GrowthHold()
    best_step: int = 0
    num_fruitless: int = 0
    """failures in a row without a step that was never done before"""
    failures_s: Seconds = ()
    """when the last of them were"""
    node_failures_s: Mapping[str, Seconds] = field(default_factory=dict)
    """node -> when workers died on it"""

    # -- progress and speed

    def after_report(self, metrics: Mapping[str, Any]) -> Self:
        """Rank 0 reported a step: see `planner.train.loop`."""
        step = int(metrics["step"]) + 1
        history = replace(
            self,
            step=step,
            total_steps=int(metrics["total_steps"]),
            eval_s=float(metrics["eval_s"]) or self.eval_s,
            best_step=max(step, self.best_step),
            num_fruitless=0 if step > self.best_step else self.num_fruitless,
        )
        # A new group reports 0 until it has made a commit.
        return history.after_commit(int(metrics["world_size"]), float(metrics["commit_s"]))

    def after_commit(self, world_size: int, seconds: float) -> Self:
        """A group of this size made a commit in so many seconds; 0 if it made none."""
        return replace(self, commit=LastCommit(seconds=seconds, world_size=world_size)) if seconds > 0 else self

    def commit_s(self, world_size: int) -> float:
        """Seconds that a commit takes at this size: those of the last one, scaled up if fewer workers write it.

        0 before the first of all.
        """
        return self.commit.seconds * max(1.0, self.commit.world_size / world_size)

    def after_step(self, world_size: int, seconds: float) -> Self:
        """A step whose time says something of the next ones."""
        known = (*self.seconds.get(world_size, ()), seconds)[-_REMEMBERED_STEPS:]
        return replace(self, seconds={**self.seconds, world_size: known})

    def after_first_step(self, seconds: float) -> Self:
        """A group took so long from its start to its first step."""
        return replace(self, first_step_s=max(self.first_step_s, seconds))

    @property
    def speeds(self) -> Speeds:
        """Medians of all world sizes seen."""
        return Speeds(measured={size: median(seconds) for size, seconds in self.seconds.items()})

    def step_s(self, world_size: int) -> float:
        """Measured at this size, or fitted from others; 0 before the first step of all."""
        if not self.seconds:
            return 0.0
        return self.speeds.seconds_per_step(make_plan(self.sizes, world_size))

    def round_s(self, world_size: int) -> float:
        """The longest round's share of a step at this size; 0 before the first step of all."""
        plan = make_plan(self.sizes, world_size)
        return self.step_s(world_size) * plan.max_micro_batch / plan.step_cost

    # -- resizes

    @property
    def cost(self) -> ResizeCost:
        """Of resizes, as measured here or as known beforehand."""
        default = self.default_cost
        return ResizeCost(
            grow_s=median(self.grow_s) if self.grow_s else default.grow_s,
            shrink_s=median(self.shrink_s) if self.shrink_s else default.shrink_s,
            lead_s=median(self.lead_s) if self.lead_s else default.lead_s,
        )

    def after_resize(self, seconds: float, *, is_growth: bool) -> Self:
        """A resize cost so many seconds of training."""
        if is_growth:
            return replace(self, grow_s=(*self.grow_s, seconds)[-_REMEMBERED_RESIZES:])
        return replace(self, shrink_s=(*self.shrink_s, seconds)[-_REMEMBERED_RESIZES:])

    def after_newcomers(self, seconds: float) -> Self:
        """Newcomers were ready after so long."""
        return replace(self, lead_s=(*self.lead_s, seconds)[-_REMEMBERED_RESIZES:], num_late_newcomers=0)

    def after_late_newcomers(self) -> Self:
        """Newcomers were not ready in time."""
        return replace(self, num_late_newcomers=self.num_late_newcomers + 1)

    # -- room

    def with_room(self, room: int, now_s: float) -> Self:
        """There is room for so many workers now. The same object, if that is nothing new."""
        if self.capacity and self.capacity[-1].world_size == room:
            return self
        change = CapacityAt(time_s=now_s, world_size=room)
        return replace(self, capacity=(*self.capacity, change)[-_REMEMBERED_CHANGES:])

    def with_hold(self, world_size: int, why: str, now_s: float) -> tuple[Self, str]:
        """Try no more workers than so many for a while, twice as long as the last time; and the text that says so."""
        hold_s = min(max(2 * self.hold.seconds, _HOLD_S), _HOLD_MOST_S)
        hold = GrowthHold(world_size=world_size, until_s=now_s + hold_s, seconds=hold_s)
        text = f"{why}; no more than {counted(world_size, 'worker')} for {duration(hold_s)}"
        return replace(self, hold=hold), text

    def held(self, room: int, now_s: float) -> int:
        """Of places that are counted, those that may be tried."""
        return min(room, self.hold.world_size) if now_s < self.hold.until_s else room

    def after_placement(self, world_size: int) -> Self:
        """So many workers have got their places."""
        return (
            replace(self, hold=GrowthHold(world_size=self.hold.world_size))
            if world_size > self.hold.world_size
            else self
        )

    # -- failures

    def after_failure(self, blamed: frozenset[str], reason: str, now_s: float) -> tuple[Self, tuple[str, ...]]:
        """Workers failed, and no lost node explains it; `blamed` are nodes that live. With what to tell of it.

        Raises:
            TrainingFailed: that comes too often.
        """
        nodes = {node: (*self.node_failures_s.get(node, ()), now_s)[-_NODE_FAILURES:] for node in blamed}
        history = replace(
            self,
            node_failures_s={**self.node_failures_s, **nodes},
            num_fruitless=self.num_fruitless + 1,
            failures_s=(*self.failures_s, now_s)[-_MOST_FAILURES:],
        )
        _check_failures(history, reason, now_s)
        bad = [node for node in blamed if history.is_bad(node, now_s)]
        left_out = (f"node {node} is left out: its workers died {_NODE_FAILURES} times within the hour" for node in bad)
        return history, (f"the workers failed: {reason}", *left_out)

    def bad_nodes(self, now_s: float) -> tuple[str, ...]:
        """Nodes whose workers die again and again."""
        return tuple(sorted(node for node in self.node_failures_s if self.is_bad(node, now_s)))

    def is_bad(self, node: str, now_s: float) -> bool:
        """Whether this is one of them."""
        times_s = self.node_failures_s.get(node, ())
        return len(times_s) == _NODE_FAILURES and now_s - times_s[0] < _FAILURES_WITHIN_S


def _check_failures(history: History, reason: str, now_s: float) -> None:
    if history.num_fruitless >= _MOST_FRUITLESS:
        raise TrainingFailed(f"the workers failed {history.num_fruitless} times in a row without progress: {reason}")
    if len(history.failures_s) == _MOST_FAILURES and now_s - history.failures_s[0] < _FAILURES_WITHIN_S:
        raise TrainingFailed(f"the workers failed {_MOST_FAILURES} times within the hour: {reason}")
