"""What one launch has measured on its worker groups: speeds, costs, failures, and changes of capacity.

A `History` is frozen: each event makes a new one. Times are seconds on one clock that never goes back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any, NamedTuple, Self

from planner.elastic.mistakes import GaveUp, Mistake, why_final
from planner.elastic.node_ages import NodeAges
from planner.events.event import Event
from planner.events.failures import GivesUp, Held, NodeLeftOut, WorkersFailed
from planner.plan import FIRST_ROUND_S, BatchSizes, make_plan
from planner.plan.capacity_history import CapacityAt
from planner.plan.forced_restarts import ForcedRestarts
from planner.plan.growth import ResizeCost
from planner.plan.lowered_caps import Caps
from planner.plan.speed import Speeds

_REMEMBERED_CHANGES = 256
_REMEMBERED_STEPS = 20
_REMEMBERED_RESIZES = 5
# A longer first start has downloaded or tokenized something, which a resize does not do again.
_START_MOST_S = 60.0
# These limits count failures that no lost node explains.
_MOST_FRUITLESS = 6
_MOST_FAILURES = 20
_FAILURES_WITHIN_S = 3600.0
# A node whose workers die this often within an hour is left out.
_NODE_FAILURES = 3
# Some places are counted but cannot be used: another job runs there, or workers do not start. planner waits this long
# before it tries them again, and twice as long each time.
_HOLD_S, _HOLD_MOST_S = 30.0, 1800.0

Times = tuple[float, ...]
"""in seconds, oldest first"""


class MeasuredStep(NamedTuple):
    """How long a step took, and what its samples cost."""

    seconds: float
    cost: float
    """as `step_cost` in the reports of `planner.train.step_records`: by length it differs from step to step"""
    waited: float = 0.0
    """the part of it in collectives, as a fraction. 0 if not known"""


@dataclass(frozen=True, kw_only=True)
class LastCommit:
    """How long the run's last commit took, and how many workers wrote it. `seconds` is 0 before the first commit."""

    seconds: float = 0.0
    world_size: int = 1
    is_measured: bool = True
    """whether this launch made it. Storage may have become slower since an earlier one"""


NO_COMMIT = LastCommit()


@dataclass(frozen=True, kw_only=True)
class LastCopy:
    """How long the last copy of a step into memory took, of `world_size` workers. 0 s before the first."""

    seconds: float = 0.0
    world_size: int = 1


@dataclass(frozen=True, kw_only=True)
class GrowthHold:
    """Before `until_s`, planner tries no more than `world_size` workers. This hold lasts `seconds`."""

    world_size: int = 0
    until_s: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class History:
    """The measurements of one launch. Sequences keep the last values only, oldest first."""

    sizes: BatchSizes
    default_cost: ResizeCost
    """expected cost of a resize, used until one was measured"""
    capacity: tuple[CapacityAt, ...] = ()
    nodes: NodeAges = field(default_factory=NodeAges)
    """as of the last entry of `capacity`"""
    forced: ForcedRestarts | None = None
    """None before the launch has looked at the cluster"""
    steps: Mapping[int, tuple[MeasuredStep, ...]] = field(default_factory=dict)
    """world size -> its last typical steps, oldest first"""
    caps: Mapping[int, Caps] = field(default_factory=dict)
    """world size -> the caps on micro-batches of its last group, once it has reported a step. `batch.max_micro: auto`
    and lowered caps give each group its own"""
    first_step_times: Mapping[int, float] = field(default_factory=dict)
    """world size -> seconds of the first step of the last group of that size. It is not typical, and often slower"""
    earlier_sample_s: float = 0.0
    """seconds per sample of a step's cost in the run's last generation before this launch. 0 if there is none"""
    least_micro: int = 0
    """the least of the largest micro-batches of this launch's groups. 0 before the first group"""
    growth_costs: Times = ()
    """seconds of training that each growth cost"""
    shrink_costs: Times = ()
    """seconds of training that each shrink cost"""
    lead_times: Times = ()
    """seconds until newcomers were ready"""
    num_late_newcomers: int = 0
    """times in a row that newcomers were not ready in time"""
    eval_s: float = 0.0
    """duration of the last evaluation in any group. 0 before the first evaluation"""
    start_s: float = 0.0
    """of this launch's first group, until its first step began. 0 before that step"""
    first_step_s: float = 0.0
    """the longest time from a group's start to its first step. 0 before any step"""
    step: int = 0
    total_steps: int = 0
    commit: LastCommit = NO_COMMIT
    copy: LastCopy = LastCopy()
    """of the last stop whose last step stayed in memory"""
    hand_over_pauses: Times = ()
    """seconds from each decision on a new group, after such a stop, to the start of its first step"""
    hold: GrowthHold = GrowthHold()
    best_step: int = 0
    num_fruitless: int = 0
    """failures in a row without a step beyond `best_step`"""
    mistake: Mistake | None = None
    """the error of the user's code that ended the last group, if no step beyond `best_step` was done since"""
    failure_times: Times = ()
    """when the workers failed"""
    node_failure_times: Mapping[str, Times] = field(default_factory=dict)
    """node -> when workers died on it"""

    # -- progress and speed

    def after_report(self, metrics: Mapping[str, Any]) -> Self:
        """A copy after a step that rank 0 reported. `planner.train.step_records` has the keys."""
        step = int(metrics["step"]) + 1
        history = replace(
            self,
            step=step,
            total_steps=int(metrics["total_steps"]),
            # A new group reports 0 until its first evaluation.
            eval_s=float(metrics["eval_s"]) or self.eval_s,
            best_step=max(step, self.best_step),
            num_fruitless=0 if step > self.best_step else self.num_fruitless,
            mistake=None if step > self.best_step else self.mistake,
        )
        world_size = int(metrics["world_size"])
        if max_micro := metrics.get("max_micro"):
            history = history.with_caps(world_size, Caps(max_micro=max_micro, max_tokens=metrics["max_tokens"]))
        # A new group reports 0 until its first commit.
        return history.after_commit(world_size, float(metrics["commit_s"]))

    def with_caps(self, world_size: int, caps: Caps) -> Self:
        """A copy with the caps of a group. Steps of this size with others are forgotten: they had other rounds."""
        if self.caps.get(world_size) == caps:
            return self
        others = {size: steps for size, steps in self.steps.items() if size != world_size}
        return replace(self, caps={**self.caps, world_size: caps}, steps=others)

    def sizes_at(self, world_size: int) -> BatchSizes:
        """The batch sizes with the caps of the last group of this size. The job's, if none has reported a step."""
        caps = self.caps.get(world_size, Caps.of(self.sizes))
        return replace(self.sizes, max_micro=caps.max_micro, max_tokens=caps.max_tokens)

    def after_commit(self, world_size: int, seconds: float) -> Self:
        """A copy after a commit by `world_size` workers. 0 seconds means that there was none."""
        return replace(self, commit=LastCommit(seconds=seconds, world_size=world_size)) if seconds > 0 else self

    def commit_s(self, world_size: int) -> float:
        """Expected duration of a commit: that of the last one, scaled up if fewer workers write it.

        0 before the first commit.
        """
        return self.commit.seconds * max(1.0, self.commit.world_size / world_size)

    def measured_commit_s(self, world_size: int) -> float:
        """The same, but 0 before the first commit of this launch. Limits that end a group are set by this."""
        return self.commit_s(world_size) if self.commit.is_measured else 0.0

    def after_copy(self, world_size: int, seconds: float) -> Self:
        """A copy of this history after a stop in memory, in which `world_size` workers copied for `seconds`."""
        return replace(self, copy=LastCopy(seconds=seconds, world_size=world_size))

    def copy_s(self, world_size: int) -> float:
        """Expected duration of a copy into memory: that of the last one, scaled up if fewer workers make it.

        0 before the first stop in memory.
        """
        return self.copy.seconds * max(1.0, self.copy.world_size / world_size)

    def after_step(self, world_size: int, seconds: float, cost: float = 1.0, waited_s: float = 0.0) -> Self:
        """A copy after a step of `seconds`, whose samples cost `cost`. Leave out steps whose time is not typical.

        `waited_s` is the part in collectives, also of a step shortly before. 0 if not known.
        """
        step = MeasuredStep(seconds, cost, min(waited_s / seconds, 1.0))
        known = (*self.steps.get(world_size, ()), step)[-_REMEMBERED_STEPS:]
        return replace(self, steps={**self.steps, world_size: known})

    def after_first_step(self, world_size: int, seconds: float, since_start_s: float) -> Self:
        """A copy after the first step of a group, which took `seconds` and ended `since_start_s` after its start."""
        times = {**self.first_step_times, world_size: seconds}
        return replace(
            self,
            start_s=self.start_s or max(since_start_s - seconds, 0.0),
            first_step_s=max(self.first_step_s, since_start_s),
            first_step_times=times,
        )

    @cached_property
    def speeds(self) -> Speeds:
        """The median seconds per step of every world size seen, and in collectives, for a step of mean cost."""
        mean = self._mean_cost
        medians = {
            size: median(step.seconds * (mean / step.cost) for step in steps) for size, steps in self.steps.items()
        }
        waited = {size: median(step.waited for step in steps) for size, steps in self.steps.items()}
        return Speeds(
            measured=medians,
            plans={size: make_plan(self.sizes_at(size), size) for size in {*medians, *self.caps}},
            waited={size: medians[size] * part for size, part in waited.items() if part},
            has_own_caps=True,
        )

    @property
    def _mean_cost(self) -> float:
        """Of the steps of all sizes. 0 before any step."""
        return fmean(step.cost for steps in self.steps.values() for step in steps) if self.steps else 0.0

    def step_s(self, world_size: int) -> float:
        """Seconds per step, measured at this size or fitted from others. 0 before any step."""
        if not self.steps:
            return 0.0
        return self.speeds.seconds_per_step(make_plan(self.sizes_at(world_size), world_size))

    @property
    def is_speed_measured(self) -> bool:
        """Whether this launch has measured a typical step, at any size."""
        return bool(self.steps)

    def round_s(self, world_size: int) -> float:
        """Seconds of the longest round that is expected at this size, above 0. Limits that end a group follow from it.

        By the plan's cost from what is known best: typical steps, first steps of groups, steps before this launch. If
        nothing is known, the launch's first group gets `FIRST_ROUND_S`, and one with larger micro-batches more.
        """
        plan = make_plan(self.sizes, world_size)
        if times := self.speeds.measured or self.first_step_times:
            return Speeds(measured=times).most_seconds_per_step(plan) * plan.largest_round(self._mean_cost)
        if self.earlier_sample_s:
            return self.earlier_sample_s * plan.max_micro_batch
        return FIRST_ROUND_S * max(plan.max_micro_batch / (self.least_micro or plan.max_micro_batch), 1.0)

    # -- resizes

    @property
    def cost(self) -> ResizeCost:
        """The median cost of a resize in this launch.

        What was not measured costs as much as the launch's first start, without the time in which newcomers start
        beside the group, up to a minute. Before that, and at least, it is `default_cost`.
        """
        default = self.default_cost
        pause_s = min(self.start_s - default.lead_s, _START_MOST_S)
        return ResizeCost(
            grow_s=median(self.growth_costs) if self.growth_costs else max(pause_s, default.grow_s),
            shrink_s=median(self.shrink_costs) if self.shrink_costs else max(pause_s, default.shrink_s),
            lead_s=median(self.lead_times) if self.lead_times else default.lead_s,
        )

    def after_resize(self, seconds: float, *, is_growth: bool) -> Self:
        """A copy after a resize that cost `seconds` of training."""
        if is_growth:
            return replace(self, growth_costs=(*self.growth_costs, seconds)[-_REMEMBERED_RESIZES:])
        return replace(self, shrink_costs=(*self.shrink_costs, seconds)[-_REMEMBERED_RESIZES:])

    def after_hand_over(self, seconds: float) -> Self:
        """A copy after a resize from memory whose new group started its first step after `seconds`."""
        return replace(self, hand_over_pauses=(*self.hand_over_pauses, seconds)[-_REMEMBERED_RESIZES:])

    @property
    def hand_over_s(self) -> float:
        """The median pause of hand-overs from memory, without the copy. 0 before the first."""
        return median(self.hand_over_pauses) if self.hand_over_pauses else 0.0

    def after_newcomers(self, seconds: float) -> Self:
        """A copy after newcomers that were ready in `seconds`."""
        return replace(self, lead_times=(*self.lead_times, seconds)[-_REMEMBERED_RESIZES:], num_late_newcomers=0)

    def after_late_newcomers(self) -> Self:
        """A copy after newcomers that were not ready in time."""
        return replace(self, num_late_newcomers=self.num_late_newcomers + 1)

    # -- room

    def with_room(self, room: Mapping[str, int], least: int, now_s: float) -> Self:
        """A copy that says how many workers there is room for now. Returns `self` if nothing changed.

        Args:
            room: node -> workers.
            least: of a group that has just lost nodes, all places count until its workers fail.
            now_s: the time.
        """
        places = sum(room.values())
        count = max(places, least)
        nodes = self.nodes if count > places else self.nodes.seen(room, now_s)
        if self.capacity and self.capacity[-1].world_size == count:
            return self if nodes is self.nodes else replace(self, nodes=nodes)
        is_fall = bool(self.capacity) and count < self.capacity[-1].world_size
        change = CapacityAt(time_s=now_s, world_size=count, steady=self.nodes.steady(room) if is_fall else None)
        forced = self.forced or ForcedRestarts(since_s=now_s)
        return replace(self, capacity=(*self.capacity, change)[-_REMEMBERED_CHANGES:], nodes=nodes, forced=forced)

    def after_forced(self, group_started_s: float, now_s: float) -> Self:
        """A copy after a loss or a notice forced the restart of a group. A group counts once."""
        forced = self.forced or ForcedRestarts(since_s=group_started_s)
        if forced.times and forced.times[-1] >= group_started_s:
            return self
        return replace(self, forced=forced.after(now_s))

    def with_hold(self, world_size: int, reason: Event, now_s: float) -> tuple[Self, Held]:
        """A copy that limits growth to `world_size` for a while, and the event that says so.

        Each hold is twice as long as the last one.
        """
        hold_s = min(max(2 * self.hold.seconds, _HOLD_S), _HOLD_MOST_S)
        hold = GrowthHold(world_size=world_size, until_s=now_s + hold_s, seconds=hold_s)
        return replace(self, hold=hold), Held(reason=reason, most=world_size, hold_s=hold_s)

    def held(self, room: int, now_s: float) -> int:
        """How many of `room` places may be tried now."""
        return min(room, self.hold.world_size) if now_s < self.hold.until_s else room

    def after_placement(self, world_size: int) -> Self:
        """A copy after `world_size` workers got a place. More than the hold allowed ends the hold."""
        micro = make_plan(self.sizes, world_size).max_micro_batch
        # Of 0 seconds, so that the next hold begins with the shortest time again.
        hold = self.hold if world_size <= self.hold.world_size else GrowthHold(world_size=self.hold.world_size)
        return replace(self, hold=hold, least_micro=min(self.least_micro or micro, micro))

    # -- failures

    def after_failure(
        self, blamed: frozenset[str], reason: Event, now_s: float, mistake: Mistake | None = None
    ) -> tuple[Self, tuple[Event, ...]]:
        """A copy after a failure that no lost node explains, and the events about it. `blamed` nodes are alive.

        Raises:
            GaveUp: there were too many such failures, or another try would meet the same mistake.
        """
        if mistake and (why := why_final(mistake, self.mistake, best_step=self.best_step)):
            raise GaveUp(GivesUp(reason=reason, why=why, failures=1))
        nodes = {node: (*self.node_failure_times.get(node, ()), now_s)[-_NODE_FAILURES:] for node in blamed}
        history = replace(
            self,
            node_failure_times={**self.node_failure_times, **nodes},
            num_fruitless=self.num_fruitless + 1,
            mistake=mistake,
            failure_times=(*self.failure_times, now_s)[-_MOST_FAILURES:],
        )
        _check_failures(history, reason, now_s)
        bad = [node for node in blamed if history.is_bad(node, now_s)]
        left_out = (NodeLeftOut(node=node, deaths=_NODE_FAILURES) for node in bad)
        return history, (WorkersFailed(reason=reason), *left_out)

    def after_lowered_cap(self) -> Self:
        """A copy that has measured no step: those had larger micro-batches, and so fewer rounds."""
        return replace(self, steps={}, first_step_times={}, caps={})

    def bad_nodes(self, now_s: float) -> tuple[str, ...]:
        """Nodes whose workers died three times within an hour, sorted."""
        return tuple(sorted(node for node in self.node_failure_times if self.is_bad(node, now_s)))

    def is_bad(self, node: str, now_s: float) -> bool:
        """Whether workers on `node` died three times within an hour."""
        times = self.node_failure_times.get(node, ())
        return len(times) == _NODE_FAILURES and now_s - times[0] < _FAILURES_WITHIN_S


def _check_failures(history: History, reason: Event, now_s: float) -> None:
    if history.num_fruitless >= _MOST_FRUITLESS:
        raise GaveUp(GivesUp(reason=reason, why="no_progress", failures=history.num_fruitless))
    times = history.failure_times
    if len(times) == _MOST_FAILURES and now_s - times[0] < _FAILURES_WITHIN_S:
        raise GaveUp(GivesUp(reason=reason, why="too_often", failures=_MOST_FAILURES))
