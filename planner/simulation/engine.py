"""Discrete events: a group trains, commits, stands still and loses nodes, while a policy looks on and decides.

Steps between two events are counted at once, so a day of short steps costs no more than one of long steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from planner.events.event import Event
from planner.plan.interval import checkpoint_interval
from planner.simulation.lives import Lives
from planner.simulation.outcome import Change, Outcome
from planner.simulation.world import Costs, Speed, ideal_steps
from planner.train.pace import FIRST_COMMIT_S, MOST_WORK_S

# A policy is shown the first steps of each group one by one: it learns from them. Later ones take the same time.
_SHOWN_STEPS = 3
# The product's controller looks at a group twice a second.
_LEAST_LOOK_S = 0.5
# Times are sums of many numbers, so two equal ones may differ by this part of a step.
_ROUNDING = 1e-6

Phase = Literal["idle", "pause", "train", "commit", "parked", "detect"]
"""`pause`: a group starts. `parked`: it has committed and waits. `detect`: a node is lost, and nobody knows yet"""


class Policy(Protocol):
    """Decides how many workers a run has."""

    name: str

    def look(self, run: "Run") -> float:
        """See the run and act on it. Return when to look again if nothing happens before."""

    def losing(self, run: "Run") -> None:
        """Take note of the last steps. A node of the group is gone, and what is not committed is lost next."""

    def failed(self, run: "Run", dead: frozenset[str]) -> None:
        """Learn that the group ended, because these nodes are lost."""


@dataclass(kw_only=True)
class _Seconds:
    """Where the time went. `open_s` is work that the next commit makes count."""

    useful: float = 0.0
    paused: float = 0.0
    redone: float = 0.0
    idle: float = 0.0
    commit: float = 0.0
    open_s: float = 0.0


class Run:
    """One run on a trace, under one policy. Policies may read everything, and act by `start` and `ask_to_stop`."""

    def __init__(self, lives: Lives, speed: Speed, costs: Costs) -> None:
        """Begin at 0 s, without a node."""
        self.lives, self.speed, self.costs = lives, speed, costs
        self.now_s = 0.0
        self.alive: dict[str, float] = {}
        """node -> when it came"""
        self.draining: dict[str, float] = {}
        """node with notice -> when it goes"""
        self.group: tuple[str, ...] = ()
        """the node of each worker"""
        self.phase: Phase = "idle"
        self.committed = 0
        """steps that no loss takes away any more"""
        self.most_done = 0
        """the most steps that were ever done, lost ones included"""
        self.group_steps = 0
        """of this group"""
        self.last_step_s = 0.0
        """when the last step ended"""
        self.last_commit_s = 0.0
        """what the last commit took. 0 before the first"""
        self.num_resizes = self.num_commits = self.num_losses = 0
        self.changes: list[Change] = []
        self._until_s = math.inf
        self._began_s = 0.0
        self._since = 0
        self._is_stopping = False
        self._dead: set[str] = set()
        self._seconds = _Seconds()

    # -- what a policy reads

    @property
    def done(self) -> int:
        """Steps that are done and not lost."""
        return self.committed + self._since

    @property
    def is_stopping(self) -> bool:
        """Whether the group was told to stop, and has not parked yet."""
        return self._is_stopping

    @property
    def step_s(self) -> float:
        """Seconds of a step of the group."""
        return self.speed.steps_s[len(self.group)]

    # -- what a policy does

    def start(self, group: Sequence[str], *, planned: bool) -> None:
        """Start a group. `planned`: the last one has parked, so nothing is lost."""
        if not planned:
            self._lose()
        self.group, self.phase, self._is_stopping = tuple(group), "pause", False
        self._until_s = self.now_s + self.costs.restart_s
        self.group_steps = 0
        self.num_resizes += 1

    def ask_to_stop(self, *, cut: bool = False) -> None:
        """Let the group finish its step, or give it up (`cut`), commit and park."""
        self._is_stopping = True
        if self.phase == "train" and cut:
            self._give_up_step()
        elif self.phase == "train":
            begun = math.ceil(self._steps_since_began() - _ROUNDING)
            # A step that ended just now is not begun again.
            self._until_s = max(self._began_s + begun * self.step_s, self.now_s)

    def _give_up_step(self) -> None:
        lost_s = self.now_s - self._began_s - self._since * self.step_s
        self._seconds.open_s -= lost_s
        self._seconds.redone += lost_s
        self._until_s = self.now_s

    def tell(self, what: str, events: tuple[Event, ...] = ()) -> None:
        """Write an entry of the timeline."""
        workers = len(self.group) if self.phase not in ("idle", "detect") else 0
        change = Change(time_s=self.now_s, nodes=len(self.alive), workers=workers, what=what, events=events)
        self.changes.append(change)

    # -- the run

    def through(self, policy: Policy) -> Outcome:
        """Play the whole trace."""
        moments, at, look_s = self.lives.moments, 0, 0.0
        while self.now_s < self.lives.end_s:
            next_s = moments[at].time_s if at < len(moments) else math.inf
            self._pass(min(self._until_s, look_s, next_s, self.lives.end_s))
            first = at
            while at < len(moments) and moments[at].time_s <= self.now_s:
                at += 1
            has_news = at > first
            if has_news:
                self._happen(first, at, policy)
            if self.now_s >= self._until_s:
                has_news |= self._finish(policy)
            if has_news or self.now_s >= look_s:
                look_s = max(policy.look(self), self.now_s + _LEAST_LOOK_S)
        return self._outcome(policy.name)

    def _pass(self, until_s: float) -> None:
        """Let time pass, in which nothing else happens."""
        passed_s, self.now_s = until_s - self.now_s, until_s
        match self.phase:
            case "pause" | "detect":
                self._seconds.paused += passed_s
            case "idle" | "parked":
                self._seconds.idle += passed_s
            case "train":
                self._seconds.open_s += passed_s
                self._count_steps()
            case "commit":
                self._seconds.open_s += passed_s

    def _steps_since_began(self) -> float:
        return (self.now_s - self._began_s) / self.step_s

    def _count_steps(self) -> None:
        """Count the steps that have ended by now."""
        since = int(self._steps_since_began() + _ROUNDING)
        if since > self._since:
            self.group_steps += since - self._since
            self._since = since
            self.most_done = max(self.most_done, self.done)
            self.last_step_s = self._began_s + since * self.step_s

    def _happen(self, first: int, last: int, policy: Policy) -> None:
        """Nodes come, go or get notice."""
        dead = set()
        for moment in self.lives.moments[first:last]:
            life = moment.life
            if moment.kind == "arrives":
                self.alive[life.node] = life.arrives_s
            elif moment.kind == "told":
                self.draining[life.node] = life.leaves_s
            else:
                self.alive.pop(life.node, None)
                self.draining.pop(life.node, None)
                dead.add(life.node)
        self._dead |= dead
        if not dead.isdisjoint(self.group) and self.phase not in ("idle", "detect"):
            if self.phase != "parked":
                policy.losing(self)
                self.num_losses += 1
                self._lose()
            self._dead, self.phase, self._is_stopping = dead, "detect", False
            self._until_s = self.now_s + self.costs.detect_s
            self.tell("lost")

    def _lose(self) -> None:
        """Forget the steps since the last commit."""
        self._seconds.redone += self._seconds.open_s
        self._seconds.open_s, self._since = 0.0, 0

    def _finish(self, policy: Policy) -> bool:
        """End what lasted until now, and begin what follows. Returns whether the policy should look at it."""
        match self.phase:
            case "detect":
                dead = frozenset(self._dead)
                self.phase, self.group, self._until_s = "idle", (), math.inf
                policy.failed(self, dead)
                return True
            case "commit":
                self._save()
            case _:
                pass
        if self._is_stopping and not self._since:
            self.phase, self._until_s, self._is_stopping = "parked", math.inf, False
            return True
        if self._is_stopping or (self.phase == "train" and self._due_in() <= 0):
            self.phase, self._until_s = "commit", self.now_s + self.costs.save_s
            return self.group_steps <= _SHOWN_STEPS
        is_shown = self.phase == "train" and self.group_steps <= _SHOWN_STEPS
        if self.phase != "train":
            self.phase, self._began_s = "train", self.now_s
        steps = self._due_in()
        if self.group_steps < _SHOWN_STEPS:
            steps = min(steps, 1)
        self._until_s = self._began_s + (self._since + steps) * self.step_s
        return is_shown

    def _save(self) -> None:
        """Make a commit count."""
        seconds = self._seconds
        seconds.useful += seconds.open_s - self.costs.save_s
        seconds.commit += self.costs.save_s
        self.committed, self._since, seconds.open_s = self.done, 0, 0.0
        self.last_commit_s = self.costs.save_s
        self.num_commits += 1

    def _due_in(self) -> int:
        """Steps until the next commit, by the rules of `planner.train.pace`. 0 or less: it is due."""
        if not self.num_commits:
            return max(1, math.ceil(FIRST_COMMIT_S / self.step_s - _ROUNDING)) - self._since
        interval = checkpoint_interval(
            save_s=self.costs.save_s, step_s=self.step_s, losses=self.num_losses, observed_s=self.now_s
        )
        return min(interval.steps, max(1, math.ceil(MOST_WORK_S / self.step_s))) - self._since

    def _outcome(self, policy: str) -> Outcome:
        """What the policy made of the trace. Steps since the last commit count, and the begun one in parts."""
        seconds, steps = self._seconds, float(self.done)
        if self.phase == "train":
            steps = self.committed + self._steps_since_began()
        begun_commit_s = seconds.open_s - self._since * self.step_s if self.phase == "commit" else 0.0
        return Outcome(
            policy=policy,
            steps=steps,
            ideal_steps=ideal_steps(self.lives, self.speed),
            useful_s=seconds.useful + seconds.open_s - begun_commit_s,
            paused_s=seconds.paused,
            redone_s=seconds.redone,
            idle_s=seconds.idle,
            commit_s=seconds.commit + begun_commit_s,
            resizes=self.num_resizes,
            commits=self.num_commits,
            losses=self.num_losses,
            changes=tuple(self.changes),
        )
