"""Decides for a worker group while it runs, and before it is started: the caller's eyes and hands are Ray's.

`planner.plan.revise` says what a change is worth; this class remembers what it needs to know (how capacity came and
went, seconds per step, what resizes and commits took), and takes a resize through its stages:

    running -> (warming newcomers) -> stopping, until every worker is parked -> resized

It knows no Ray and no clock of its own: tests walk it through hours in milliseconds.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

from planner.errors import TrainingFailed
from planner.plan import (
    BatchSizes,
    CapacityChange,
    Decision,
    Facts,
    ResizeCost,
    Situation,
    Speeds,
    choose,
    longest_silence_s,
    revise,
)
from planner.plan import worth_asking as worth_asking_for
from planner.plan.words import counted, duration

# A second notice often follows the first: spot capacity is taken back in batches. Notices give 30 s at least.
_COALESCE_S = 1.0
_COALESCE_MOST_S = 5.0
# Workers park within a step and a commit. Who does not within this time has a reason that waiting will not mend.
_PARK_AT_LEAST_S = 60.0
# No sign of life for so long before a group's first step: large models are loaded and compiled for minutes. It is
# torch's own limit for a collective.
_SILENCE_BEFORE_FIRST_STEP_S = 1800.0
_REMEMBERED_CHANGES = 256
_REMEMBERED_STEPS = 20
# Failures that no lost node explains.
_MOST_FRUITLESS = 6
_MOST_FAILURES = 20
_FAILURES_WITHIN_S = 3600.0
# A node whose workers die so often within an hour is left out.
_NODE_FAILURES = 3
# Places that are counted but cannot be had (something else runs there, or workers do not come up) are tried again after
# so long, twice as long each time. Newcomers that are not ready by then will not be.
_HOLD_S, _HOLD_MOST_S = 30.0, 1800.0
_WARM_AT_LEAST_S = 60.0
# Where too few nodes will be left, the notice is used up but for this much.
_SPARE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class View:
    """What there is to see at one moment."""

    room: Mapping[str, int]
    """node -> workers of this job that it holds or could hold; nodes that are dead or about to go are left out"""
    draining: Mapping[str, float]
    """node -> seconds until it goes; infinite if nobody said when"""
    nodes: tuple[str, ...] = ()
    """the node of each rank; empty where no group runs"""
    parked: frozenset[int] = frozenset()
    """ranks that have committed and wait"""
    silent: frozenset[int] = frozenset()
    """ranks that do not answer"""
    newcomers: Literal["none", "warming", "ready", "failed"] = "none"
    """processes that were started beside the group"""

    @property
    def leaving(self) -> frozenset[str]:
        """Nodes of the group that are about to go."""
        return frozenset(self.nodes) & frozenset(self.draining)


@dataclass(frozen=True, kw_only=True)
class Act:
    """What to do now."""

    kind: Literal["nothing", "warm", "stop", "resize", "abandon_newcomers", "end"] = "nothing"
    """`end`: all that could be saved is, and the driver may end the run"""
    world_size: int = 0
    """for `resize`; for `warm` the number of newcomers"""
    planned: bool = False
    """for `resize`: every worker is parked, all is committed"""
    words: tuple[str, ...] = ()
    """for the ledger"""


@dataclass(kw_only=True)
class _Stopping:
    """A resize that was begun."""

    began_s: float
    from_size: int
    target: int
    """the size that newcomers were started for; 0 if the change is not a growth"""
    reason: str


@dataclass(frozen=True, kw_only=True)
class _Warming:
    """Newcomers that were asked for."""

    since_s: float
    world_size: int
    """of the group that is to come"""
    reason: str


@dataclass(kw_only=True)
class _Group:
    """What is known of the group that runs."""

    nodes: tuple[str, ...]
    seen_s: float
    """last sign of life"""
    steps_seen: int = 0
    commit_s: float = 0.0
    eval_s: float = 0.0
    """what its own last ones took; 0 before the first"""


@dataclass(kw_only=True)
class _Memory:
    """What outlives a group."""

    capacity: list[CapacityChange] = field(default_factory=list)
    seconds: dict[int, deque[float]] = field(default_factory=dict)
    grow_s: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    shrink_s: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    lead_s: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    commit_s: float = 0.0
    eval_s: float = 0.0
    step: int = 0
    best_step: int = 0
    total_steps: int = 0
    failures_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_FAILURES))
    fruitless: int = 0
    node_failures: dict[str, deque[float]] = field(default_factory=dict)
    held_at: int = 0
    held_until_s: float = 0.0
    held_s: float = 0.0
    """no more workers than so many are tried before then; and for how long that was said the last time"""


class Steward:
    """One per launch, in the process that controls the workers."""

    def __init__(
        self,
        *,
        sizes: BatchSizes,
        workers_min: int,
        workers_max: int,
        clock: Callable[[], float],
        cost: ResizeCost,
        has_eval: bool,
        eager: bool = False,
        on_one_machine: bool = False,
    ) -> None:
        """Begin a launch.

        `eager`: take every node that comes, worth it or not, as rehearsals want. `on_one_machine`: the nodes share its
        cores, so what was measured at one size says nothing of nodes of their own at another: the plan's cost does.
        """
        self._on_one_machine = on_one_machine
        self._sizes, self._min, self._max, self._eager = sizes, workers_min, workers_max, eager
        self._clock, self._default_cost, self._has_eval = clock, cost, has_eval
        self._memory = _Memory()
        self._group: _Group | None = None
        self._stopping: _Stopping | None = None
        self._warming: _Warming | None = None
        self._notice_s: tuple[float, float, frozenset[str]] | None = None
        self._resumed: tuple[float, int] | None = None
        self._said = ""
        self._untold: list[str] = []
        self._is_ending = False
        self._news: list[str] = []

    # -- what the caller saw happen

    def started(self, nodes: tuple[str, ...]) -> None:
        """A group was started; `nodes` by rank."""
        self._group = _Group(nodes=nodes, seen_s=self._clock())
        self._stopping = self._warming = self._notice_s = None
        if len(nodes) > self._memory.held_at:
            self._memory.held_s = self._memory.held_until_s = 0.0

    def reported(self, metrics: Mapping[str, Any]) -> None:
        """Rank 0 reported a step: see `planner.train.loop`."""
        memory, now = self._memory, self._clock()
        memory.step, memory.total_steps = int(metrics["step"]) + 1, int(metrics["total_steps"])
        commit_s, eval_s = float(metrics["commit_s"]), float(metrics["eval_s"])
        # A new group reports 0 until it has made one.
        memory.commit_s, memory.eval_s = commit_s or memory.commit_s, eval_s or memory.eval_s
        if memory.step > memory.best_step:
            memory.best_step, memory.fruitless = memory.step, 0
        if self._group is None:
            return
        self._group.seen_s = now
        self._group.steps_seen += 1
        self._group.commit_s, self._group.eval_s = commit_s, eval_s
        self._measure_resize(now)
        # The first step of a group also pays for caches, compilation and, in `bitwise`, a repetition.
        if self._group.steps_seen > 1:
            steps = memory.seconds.setdefault(int(metrics["world_size"]), deque(maxlen=_REMEMBERED_STEPS))
            steps.append(float(metrics["seconds"]))

    def failed(self, dead: frozenset[str], blamed: frozenset[str], reason: str) -> None:
        """The group failed. `dead`: nodes that are gone; `blamed`: nodes that live, and whose worker died.

        Raises:
            TrainingFailed: failures that no lost node explains come too often.
        """
        memory, now = self._memory, self._clock()
        self._group = self._resumed = None
        if dead:
            self._untold.append(f"{counted(len(dead), 'node')} lost; on from the last commit")
            return
        self._untold.append(f"the workers failed: {reason}")
        for node in blamed:
            memory.node_failures.setdefault(node, deque(maxlen=_NODE_FAILURES)).append(now)
            if self._is_bad(node):
                self._untold.append(f"node {node} is left out: its workers died {_NODE_FAILURES} times within the hour")
        memory.fruitless += 1
        memory.failures_s.append(now)
        if memory.fruitless >= _MOST_FRUITLESS:
            raise TrainingFailed(f"the workers failed {memory.fruitless} times in a row without progress: {reason}")
        if len(memory.failures_s) == _MOST_FAILURES and now - memory.failures_s[0] < _FAILURES_WITHIN_S:
            raise TrainingFailed(f"the workers failed {_MOST_FAILURES} times within the hour: {reason}")

    def end(self) -> None:
        """The driver wants to end the run: workers finish their step and commit, and nothing is started any more."""
        self._is_ending = True

    # -- what to do

    @property
    def wanted(self) -> int:
        """How many workers to ask an autoscaler for: never a count that a smaller one equals."""
        return self._useful(self._max)

    def idle(self, view: View) -> Act:
        """No group runs: start one, or wait for nodes."""
        self._group = self._stopping = self._resumed = None
        if self._is_ending:
            return Act(kind="end")
        room = self._room(view)
        self._note_room(room)
        usable = min(room, self._max)
        if usable < self._min:
            return self._wait(usable)
        return Act(kind="resize", world_size=self._useful(usable))

    def running(self, view: View) -> Act:
        """A group runs: leave it alone, prepare a change, or make it."""
        act = self._running(view)
        news, self._news = tuple(self._news), []
        return replace(act, words=(*news, *act.words))

    def _running(self, view: View) -> Act:
        assert self._group is not None
        if self._stopping is not None:
            return self._await_parked(view, self._stopping)
        if (urgent := self._urgent(view)) is not None:
            return urgent
        room = self._room(view)
        size = len(view.nodes)
        if view.leaving:
            return self._leave(view, room)
        self._notice_s = None
        # A node that has just died is told by the failure of its workers; our own places are never taken by others.
        room = max(room, size)
        self._note_room(room)
        if self._warming is not None:
            return self._await_newcomers(view, self._warming, room)
        decision = self._eager_decision(size, room) or revise(self._situation(size))
        if decision.kind != "resize":
            return self._nothing(f"{decision.kind}: {decision.reason}" if decision.kind == "wait" else "")
        # Newcomers start and import while the others train on; only then is anybody stopped.
        self._warming = _Warming(since_s=self._clock(), world_size=decision.world_size, reason=decision.reason)
        return Act(kind="warm", world_size=decision.world_size - size, words=(f"resize: {decision.reason}",))

    @property
    def untold(self) -> tuple[str, ...]:
        """What `take_words` would take."""
        return tuple(self._untold)

    def take_words(self) -> tuple[str, ...]:
        """What could not be told, since no group ran to write it down."""
        words, self._untold = tuple(self._untold), []
        return words

    def _useful(self, usable: int) -> int:
        """The least count that is as fast as all that may be used."""
        if self._eager:
            return usable
        return max(self._min, worth_asking_for(choose(self._sizes, self._max, Facts()), usable))

    def _eager_decision(self, size: int, room: int) -> Decision | None:
        target = min(room, self._max)
        if not self._eager or target == size:
            return None
        reason = f"{size} -> {target}: every node is taken"
        return Decision(kind="resize", world_size=target, until_s=self._clock(), reason=reason)

    # -- stages of a change

    def _await_newcomers(self, view: View, warming: "_Warming", room: int) -> Act:
        """The decision stands while there is room for it: to ask again and again would start and end processes."""
        took_s = self._clock() - warming.since_s
        is_late = view.newcomers == "warming" and took_s > max(_WARM_AT_LEAST_S, 3 * self._cost.lead_s)
        if room < warming.world_size or view.newcomers == "failed" or is_late:
            self._warming = None
            if room < warming.world_size:
                why = f"room for {room} is left"
            else:
                failed = f"they were not ready after {duration(took_s)}" if is_late else "one failed while it started"
                why = self._hold(len(view.nodes), failed)
            return Act(kind="abandon_newcomers", words=(f"newcomers were called off: {why}",))
        if view.newcomers == "warming":
            return Act()
        self._memory.lead_s.append(took_s)
        return self._stop(view, warming.reason, (), target=warming.world_size)

    def _leave(self, view: View, room: int) -> Act:
        """Notice was given to nodes of the group: everybody stops before they go."""
        now = self._clock()
        began_s, _, known = self._notice_s or (now, now, frozenset())
        if view.leaving - known:
            self._notice_s = (began_s, now, known | view.leaving)
        _, latest_s, known = self._notice_s or (now, now, known)
        deadline_s = self._deadline_s(view)
        needed_s = self._stop_s
        if room < self._min and deadline_s > needed_s + _SPARE_S:
            # To stop now would only wait: what is left of the notice is trained.
            return self._nothing(f"notice, and room for {room} will be left: training goes on while it can")
        in_time = deadline_s - needed_s > _COALESCE_S
        if in_time and now - latest_s < _COALESCE_S and now - began_s < _COALESCE_MOST_S:
            return Act()
        self._note_room(room)
        size = len(view.nodes)
        gone = sum(node in view.leaving for node in view.nodes)
        reason = f"notice for {counted(gone, 'worker')} of {size}, {duration(deadline_s)} left; room for {room}"
        words = [f"resize: {reason}"]
        if needed_s > deadline_s:
            words.append(
                f"a step and a commit take {duration(needed_s)}: the notice is too short to keep all steps",
            )
        return self._stop(view, reason, tuple(words))

    def _stop(self, view: View, reason: str, words: tuple[str, ...], *, target: int = 0) -> Act:
        self._stopping = _Stopping(began_s=self._clock(), from_size=len(view.nodes), target=target, reason=reason)
        self._warming = None
        return Act(kind="stop", words=words)

    @staticmethod
    def _deadline_s(view: View) -> float:
        """Until the first node of the group goes; infinite if none does, or nobody said when."""
        return min((view.draining[node] for node in view.leaving), default=math.inf)

    def _is_late(self, view: View, stopping: _Stopping) -> bool:
        """Whether to wait no longer for workers to park: their node goes, or no step and commit explain it any more."""
        deadline_s = self._deadline_s(view)
        if deadline_s < math.inf:
            return deadline_s <= 0
        return self._clock() - stopping.began_s > self._patience_s

    def _await_parked(self, view: View, stopping: _Stopping) -> Act:
        """All parked: on to what the cluster holds by now. Too late: on without those who are not."""
        parked = len(view.parked) == len(view.nodes)
        if not parked and not self._is_late(view, stopping):
            return Act()
        if self._is_ending:
            return Act(kind="end")
        room = self._room(view)
        if not view.leaving:
            room = max(room, len(view.nodes))
        self._note_room(room)
        usable = min(room, self._max)
        if not parked:
            waited = duration(self._clock() - stopping.began_s)
            missing = counted(len(view.nodes) - len(view.parked), "worker")
            self._untold.append(f"{missing} had not parked after {waited}: steps since the last commit are done again")
            return Act(kind="resize", world_size=self._useful(usable) if usable >= self._min else len(view.nodes))
        if usable < self._min:
            # Nothing is lost: new nodes may come before the old ones go. What the resize itself takes, begins then.
            stopping.began_s = self._clock()
            return self._wait(usable)
        # Who was not started beforehand would keep all the others waiting.
        size = min(self._useful(usable), stopping.target or usable)
        self._resumed = (stopping.began_s, stopping.from_size)
        return Act(kind="resize", world_size=size, planned=True)

    def _urgent(self, view: View) -> Act | None:
        if self._is_ending:
            return self._stop(view, "", ("the driver stops the run",))
        return self._hang(view)

    def _hang(self, view: View) -> Act | None:
        """Nobody reports any more, and nobody failed: end the group rather than wait for torch's half hour."""
        assert self._group is not None
        silence_s = self._clock() - self._group.seen_s
        if silence_s <= self._silence_s:
            return None
        blamed = frozenset(view.nodes[rank] for rank in view.silent)
        reason = f"no step for {duration(silence_s)}, and {duration(self._silence_s)} is the most that one may take"
        self.failed(frozenset(), blamed, reason)
        return Act(kind="resize", world_size=self.idle(view).world_size or len(view.nodes))

    def unplaced(self, placed: int, asked: int) -> None:
        """A group was to start with `asked` workers, and only `placed` of them got their place in time."""
        self._untold.append(self._hold(placed, f"only {placed} of {asked} workers got a place"))

    def _hold(self, size: int, why: str) -> str:
        """Try no more workers than so many for a while, twice as long as the last time."""
        memory = self._memory
        memory.held_s = min(max(2 * memory.held_s, _HOLD_S), _HOLD_MOST_S)
        memory.held_at, memory.held_until_s = size, self._clock() + memory.held_s
        return f"{why}; no more than {counted(size, 'worker')} for {duration(memory.held_s)}"

    def _wait(self, usable: int) -> Act:
        return self._nothing(f"waiting: room for {usable}, and workers.min is {self._min}")

    def _nothing(self, words: str) -> Act:
        """Words are said once, not at every look."""
        if not words or words.partition(":")[0] == self._said:
            return Act()
        self._said = words.partition(":")[0]
        return Act(words=(words,))

    # -- what is known

    def _room(self, view: View) -> int:
        """For so many workers, as far as is known."""
        room = sum(self._usable(view).values())
        memory = self._memory
        return min(room, memory.held_at) if self._clock() < memory.held_until_s else room

    def _usable(self, view: View) -> dict[str, int]:
        """Room without the nodes whose workers keep dying, as long as enough is left."""
        good = {node: count for node, count in view.room.items() if not self._is_bad(node)}
        return good if sum(good.values()) >= self._min else dict(view.room)

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        """Nodes whose workers die again and again; no worker is to be placed there."""
        return tuple(sorted(node for node in self._memory.node_failures if self._is_bad(node)))

    def _is_bad(self, node: str) -> bool:
        times = self._memory.node_failures.get(node)
        if times is None:
            return False
        return len(times) == _NODE_FAILURES and self._clock() - times[0] < _FAILURES_WITHIN_S

    def _note_room(self, room: int) -> None:
        changes = self._memory.capacity
        if not changes or changes[-1].world_size != room:
            self._said = ""
            changes.append(CapacityChange(time_s=self._clock(), world_size=room))
            del changes[:-_REMEMBERED_CHANGES]

    def _situation(self, size: int) -> Situation:
        memory = self._memory
        return Situation(
            plan=choose(self._sizes, size, Facts()),
            capacity=memory.capacity,
            speeds=self._speeds(size),
            cost=self._cost,
            remaining_steps=max(memory.total_steps - memory.step, 0),
            workers_min=self._min,
            workers_max=self._max,
            now_s=self._clock(),
        )

    def _speeds(self, size: int) -> Speeds:
        seconds = self._memory.seconds
        if self._on_one_machine:
            seconds = {size: seconds[size]} if seconds.get(size) else {}
        return Speeds(measured={w: median(s) for w, s in seconds.items()})

    @property
    def _cost(self) -> ResizeCost:
        memory, default = self._memory, self._default_cost
        return ResizeCost(
            grow_s=median(memory.grow_s) if memory.grow_s else default.grow_s,
            shrink_s=median(memory.shrink_s) if memory.shrink_s else default.shrink_s,
            lead_s=median(memory.lead_s) if memory.lead_s else default.lead_s,
        )

    def _measure_resize(self, now_s: float) -> None:
        """From the signal to the first step of the group that came of it."""
        if self._resumed is None or self._group is None or self._group.steps_seen != 1:
            return
        began_s, before = self._resumed
        self._resumed = None
        grew = len(self._group.nodes) > before
        (self._memory.grow_s if grew else self._memory.shrink_s).append(now_s - began_s)
        sizes = f"{before} -> {len(self._group.nodes)} workers"
        self._news.append(f"{sizes}: {duration(now_s - began_s)} from the signal to the first step")

    @property
    def _step_s(self) -> float:
        """Measured at this size, or fitted from others; 0 before the first step of all."""
        size = len(self._group.nodes) if self._group else 0
        if self._memory.seconds.get(size):
            return median(self._memory.seconds[size])
        if not size or not any(self._memory.seconds.values()):
            return 0.0
        measured = {w: median(s) for w, s in self._memory.seconds.items() if s}
        return Speeds(measured=measured).seconds_per_step(choose(self._sizes, size, Facts()))

    @property
    def _stop_s(self) -> float:
        """What it takes to finish a step, or an evaluation, and commit."""
        return 2 * self._step_s + 1.5 * (self._memory.commit_s + self._memory.eval_s)

    @property
    def _patience_s(self) -> float:
        return max(_PARK_AT_LEAST_S, 10 * self._stop_s, self._silence_s)

    @property
    def _silence_s(self) -> float:
        if self._group is None or not self._group.steps_seen:
            return _SILENCE_BEFORE_FIRST_STEP_S
        group = self._group
        return longest_silence_s(
            step_s=self._step_s, commit_s=group.commit_s, eval_s=group.eval_s, has_eval=self._has_eval
        )
