"""What the steward remembers from one worker group to the next: speeds, costs, failures, how capacity came and went."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from planner.base.text import counted, duration
from planner.errors import TrainingFailed
from planner.plan import BatchSizes, CapacityChange, ResizeCost, Speeds, choose

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


def _few() -> deque[float]:
    return deque(maxlen=_REMEMBERED_RESIZES)


@dataclass(kw_only=True)
class Memory:
    """One per launch."""

    clock: Callable[[], float]
    sizes: BatchSizes
    default_cost: ResizeCost
    capacity: list[CapacityChange] = field(default_factory=list)
    seconds: dict[int, deque[float]] = field(default_factory=dict)
    """world size -> seconds per step, the last ones"""
    grow_s: deque[float] = field(default_factory=_few)
    shrink_s: deque[float] = field(default_factory=_few)
    lead_s: deque[float] = field(default_factory=_few)
    """seconds without training that the last growths and shrinks cost; seconds until newcomers were ready"""
    eval_s: float = 0.0
    """seconds of the last evaluation in any group; 0 before the first one"""
    first_step_s: float = 0.0
    """the longest that a group took from its start to its first step; 0 before the first of all"""
    step: int = 0
    total_steps: int = 0
    _commit: tuple[float, int] = (0.0, 1)
    _best_step: int = 0
    _fruitless: int = 0
    _failures_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_FAILURES))
    _node_failures_s: dict[str, deque[float]] = field(default_factory=dict)
    _held_at: int = 0
    _held_until_s: float = 0.0
    _held_s: float = 0.0

    # -- progress and speed

    def reported(self, metrics: Mapping[str, Any]) -> None:
        """Rank 0 reported a step: see `planner.train.loop`."""
        self.step, self.total_steps = int(metrics["step"]) + 1, int(metrics["total_steps"])
        # A new group reports 0 until it has made one.
        self.committed(int(metrics["world_size"]), float(metrics["commit_s"]))
        self.eval_s = float(metrics["eval_s"]) or self.eval_s
        if self.step > self._best_step:
            self._best_step, self._fruitless = self.step, 0

    def committed(self, world_size: int, seconds: float) -> None:
        """A group of this size made a commit in so many seconds; 0 if it made none."""
        if seconds > 0:
            self._commit = (seconds, world_size)

    def commit_s(self, world_size: int) -> float:
        """Seconds that a commit takes at this size: those of the last one, scaled up if fewer workers write it.

        0 before the first of all.
        """
        seconds, measured_at = self._commit
        return seconds * max(1.0, measured_at / world_size)

    def measured_step(self, world_size: int, seconds: float) -> None:
        """One that says something of the next ones."""
        self.seconds.setdefault(world_size, deque(maxlen=_REMEMBERED_STEPS)).append(seconds)

    @property
    def speeds(self) -> Speeds:
        """Medians of all world sizes seen."""
        return Speeds(measured={size: median(seconds) for size, seconds in self.seconds.items()})

    def step_s(self, world_size: int) -> float:
        """Measured at this size, or fitted from others; 0 before the first step of all."""
        if not self.seconds:
            return 0.0
        return self.speeds.seconds_per_step(choose(self.sizes, world_size))

    def round_s(self, world_size: int) -> float:
        """The longest round's share of a step at this size; 0 before the first step of all."""
        plan = choose(self.sizes, world_size)
        return self.step_s(world_size) * plan.max_micro_batch / plan.step_cost

    @property
    def cost(self) -> ResizeCost:
        """Of resizes, as measured here or as known beforehand."""
        default = self.default_cost
        return ResizeCost(
            grow_s=median(self.grow_s) if self.grow_s else default.grow_s,
            shrink_s=median(self.shrink_s) if self.shrink_s else default.shrink_s,
            lead_s=median(self.lead_s) if self.lead_s else default.lead_s,
        )

    # -- room

    def note_room(self, room: int) -> bool:
        """There is room for so many workers now; whether that is another number than before."""
        if self.capacity and self.capacity[-1].world_size == room:
            return False
        self.capacity.append(CapacityChange(time_s=self.clock(), world_size=room))
        del self.capacity[:-_REMEMBERED_CHANGES]
        return True

    def hold(self, world_size: int, why: str) -> str:
        """Try no more workers than so many for a while, twice as long as the last time; said in words."""
        self._held_s = min(max(2 * self._held_s, _HOLD_S), _HOLD_MOST_S)
        self._held_at, self._held_until_s = world_size, self.clock() + self._held_s
        return f"{why}; no more than {counted(world_size, 'worker')} for {duration(self._held_s)}"

    def held(self, room: int) -> int:
        """Of places that are counted, those that may be tried."""
        return min(room, self._held_at) if self.clock() < self._held_until_s else room

    def placed(self, world_size: int) -> None:
        """So many workers have got their places."""
        if world_size > self._held_at:
            self._held_s = self._held_until_s = 0.0

    # -- failures

    def failed(self, blamed: frozenset[str], reason: str) -> list[str]:
        """Workers failed, and no lost node explains it; `blamed` are nodes that live. What to tell of it.

        Raises:
            TrainingFailed: that comes too often.
        """
        now = self.clock()
        words = [f"the workers failed: {reason}"]
        for node in blamed:
            self._node_failures_s.setdefault(node, deque(maxlen=_NODE_FAILURES)).append(now)
            if self.is_bad(node):
                words.append(f"node {node} is left out: its workers died {_NODE_FAILURES} times within the hour")
        self._fruitless += 1
        self._failures_s.append(now)
        if self._fruitless >= _MOST_FRUITLESS:
            raise TrainingFailed(f"the workers failed {self._fruitless} times in a row without progress: {reason}")
        if len(self._failures_s) == _MOST_FAILURES and now - self._failures_s[0] < _FAILURES_WITHIN_S:
            raise TrainingFailed(f"the workers failed {_MOST_FAILURES} times within the hour: {reason}")
        return words

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        """Nodes whose workers die again and again."""
        return tuple(sorted(filter(self.is_bad, self._node_failures_s)))

    def is_bad(self, node: str) -> bool:
        """Whether this is one of them."""
        times_s = self._node_failures_s.get(node)
        if times_s is None:
            return False
        return len(times_s) == _NODE_FAILURES and self.clock() - times_s[0] < _FAILURES_WITHIN_S
