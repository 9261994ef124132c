"""Decides for a worker group while it runs, and before it is started: the caller's eyes and hands are Ray's.

`planner.plan.revise` says what a change is worth; this class tells it what it needs to know (`memory.py`), and takes a
resize through its stages:

    running -> (warming newcomers) -> stopping, until every worker is parked -> resized

It knows no Ray and no clock of its own: tests walk it through hours in milliseconds.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from planner.dispatch.memory import Memory
from planner.plan import (
    UNMEASURED_S,
    BatchSizes,
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
# Until a group has made a commit of its own, what the last one's took says less: fewer workers write more each.
_SILENCE_BY_OTHERS_S = 600.0
# Between two looks at a group; they are half a second apart. What is more, the controller was suspended itself, and
# perhaps the group with it: it is no silence of the group's.
_LOOK_MOST_S = 15.0
# Newcomers that are not ready by then are called off, and the next ones have twice as long: some machines have to
# tokenize a data set first, on others something else holds the place.
_WARM_AT_LEAST_S = 60.0
_WARM_MOST_S = 3600.0
# Where too few nodes will be left, the notice is used up but for this much.
_SPARE_S = 5.0
# A machine often lives on for some seconds after the moment that was named, or with a notice that names the present
# (AWS hibernates so). Who waits in vain loses this much; who does not wait loses the steps since the last commit.
_GRACE_MOST_S = 10.0
_GRACE_LEAST_S = 2.0


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
    started_s: float
    seen_s: float
    """last sign of life; later by as long as nobody looked"""
    looked_s: float
    steps_seen: int = 0
    commit_s: float = 0.0
    eval_s: float = 0.0
    """what its own last ones took; 0 before the first"""


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
        self._clock, self._has_eval = clock, has_eval
        self._memory = Memory(clock=clock, sizes=sizes, default_cost=cost)
        self._group: _Group | None = None
        self._stopping: _Stopping | None = None
        self._warming: _Warming | None = None
        self._num_late_warmings = 0
        self._notice_s: tuple[float, float, frozenset[str]] | None = None
        self._resumed: tuple[float, int] | None = None
        self._said = ""
        self._untold: list[str] = []
        self._is_ending = False
        self._news: list[str] = []

    # -- what the caller saw happen

    def started(self, nodes: tuple[str, ...]) -> None:
        """A group was started; `nodes` by rank."""
        now_s = self._clock()
        self._group = _Group(nodes=nodes, started_s=now_s, seen_s=now_s, looked_s=now_s)
        self._stopping = self._warming = self._notice_s = None
        self._memory.placed(len(nodes))

    def reported(self, metrics: Mapping[str, Any]) -> None:
        """Rank 0 reported a step: see `planner.train.loop`. Or progress before the first one: a sign of life."""
        group = self._group
        if "progress" in metrics:
            if group is not None:
                group.seen_s = self._clock()
            return
        self._memory.reported(metrics)
        if group is None:
            return
        group.seen_s = self._clock()
        group.steps_seen += 1
        group.commit_s, group.eval_s = float(metrics["commit_s"]), float(metrics["eval_s"])
        self._measure_resize(group.seen_s)
        if group.steps_seen == 1:
            self._memory.first_step_s = max(self._memory.first_step_s, group.seen_s - group.started_s)
        # The first step of a group also pays for caches, compilation and, in `bitwise`, a repetition.
        if group.steps_seen > 1:
            self._memory.measured_step(int(metrics["world_size"]), float(metrics["seconds"]))

    def failed(self, dead: frozenset[str], blamed: frozenset[str], reason: str) -> None:
        """The group failed. `dead`: nodes that are gone; `blamed`: nodes that live, and whose worker died.

        Raises:
            TrainingFailed: failures that no lost node explains come too often.
        """
        self._group = self._resumed = None
        if dead:
            self._untold.append(f"{counted(len(dead), 'node')} lost; on from the last commit")
        else:
            self._untold += self._memory.failed(blamed, reason)

    def end(self) -> None:
        """The driver wants to end the run: workers finish their step and commit, and nothing is started any more."""
        self._is_ending = True

    # -- what to do

    @cached_property
    def worth_asking(self) -> tuple[int, ...]:
        """How many workers to ask an autoscaler for, the last best, rising: no count that a smaller one equals."""
        counts = [self._useful(self._max)]
        while counts[-1] > self._min:
            counts.append(self._useful(counts[-1] - 1))
        return tuple(reversed(counts))

    def tell(self, words: str) -> None:
        """For the ledger of the group that runs, or of the next one."""
        (self._news if self._group else self._untold).append(words)

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
        self._look_at(self._group)
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
        usual_s = max(_WARM_AT_LEAST_S, 3 * self._memory.cost.lead_s)
        is_late = view.newcomers == "warming" and took_s > min(usual_s * 2**self._num_late_warmings, _WARM_MOST_S)
        if room < warming.world_size or view.newcomers == "failed" or is_late:
            self._warming = None
            self._num_late_warmings += is_late
            if room < warming.world_size:
                why = f"room for {room} is left"
            else:
                failed = f"they were not ready after {duration(took_s)}" if is_late else "one failed while it started"
                why = self._memory.hold(len(view.nodes), failed)
            return Act(kind="abandon_newcomers", words=(f"newcomers were called off: {why}",))
        if view.newcomers == "warming":
            return Act()
        self._num_late_warmings = 0
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
            took = f"a step and a commit take {duration(needed_s)}" if needed_s else "no step was measured yet"
            all_the_same = (
                f"a commit is tried for {duration(self._grace_s)} all the same"
                if deadline_s < self._grace_s
                else "the notice is too short to keep all steps"
            )
            words.append(f"{took}: {all_the_same}")
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
        deadline_s, waited_s = self._deadline_s(view), self._clock() - stopping.began_s
        if deadline_s < math.inf:
            return deadline_s <= 0 and waited_s > self._grace_s
        return waited_s > self._patience_s

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
        assert self._group is not None
        if self._is_ending and not self._group.steps_seen:
            return Act(kind="end")  # nothing was done yet that could be lost
        if self._is_ending:
            return self._stop(view, "", ("the driver stops the run",))
        return self._hang(view)

    def _look_at(self, group: _Group) -> None:
        now_s = self._clock()
        unseen_s = max(now_s - group.looked_s - _LOOK_MOST_S, 0.0)
        group.seen_s, group.looked_s = min(group.seen_s + unseen_s, now_s), now_s

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

    def note(self, words: str) -> None:
        """For the ledger of the next group."""
        self._untold.append(words)

    def unplaced(self, placed: int, asked: int) -> None:
        """A group was to start with `asked` workers, and only `placed` of them got their place in time."""
        self._untold.append(self._memory.hold(placed, f"only {placed} of {asked} workers got a place"))

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
        return self._memory.held(sum(self._usable(view).values()))

    def _usable(self, view: View) -> dict[str, int]:
        """Room without the nodes whose workers keep dying, as long as enough is left."""
        good = {node: count for node, count in view.room.items() if not self._memory.is_bad(node)}
        return good if sum(good.values()) >= self._min else dict(view.room)

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        """Nodes whose workers die again and again; no worker is to be placed there."""
        return self._memory.bad_nodes

    def _note_room(self, room: int) -> None:
        if self._memory.note_room(room):
            self._said = ""

    def _situation(self, size: int) -> Situation:
        memory = self._memory
        return Situation(
            plan=choose(self._sizes, size, Facts()),
            capacity=memory.capacity,
            speeds=self._speeds(size),
            cost=memory.cost,
            remaining_steps=max(memory.total_steps - memory.step, 0),
            workers_min=self._min,
            workers_max=self._max,
            now_s=self._clock(),
        )

    def _speeds(self, size: int) -> Speeds:
        speeds = self._memory.speeds
        if not self._on_one_machine:
            return speeds
        present = {w: seconds for w, seconds in speeds.measured.items() if w == size}
        return Speeds(measured=present, on_one_machine=True)

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
        """Of the group that runs; 0 if none was measured yet."""
        return self._memory.step_s(len(self._group.nodes)) if self._group else 0.0

    @property
    def _stop_s(self) -> float:
        """What it takes to finish a step, or an evaluation, and commit."""
        return 2 * self._step_s + 1.5 * (self._memory.commit_s + self._memory.eval_s)

    @property
    def _grace_s(self) -> float:
        """From the signal to stop, whatever was named: as long as it is likely to be enough, else not at all."""
        memory = self._memory
        if not (self._step_s and memory.commit_s and (memory.eval_s or not self._has_eval)):
            return _GRACE_MOST_S
        if self._stop_s > _GRACE_MOST_S:
            return 0.0
        return min(max(_GRACE_LEAST_S, 2 * self._stop_s), _GRACE_MOST_S)

    @property
    def _patience_s(self) -> float:
        return max(_PARK_AT_LEAST_S, 10 * self._stop_s, self._silence_s)

    @property
    def _silence_s(self) -> float:
        group, memory = self._group, self._memory
        if group is None or not group.steps_seen:
            if not (memory.first_step_s and memory.commit_s):
                return UNMEASURED_S
            # What was committed has to be read again, perhaps by fewer workers; what was compiled, compiled again.
            return max(_SILENCE_BY_OTHERS_S, 10 * memory.first_step_s + 5 * memory.commit_s)
        is_own = group.commit_s > 0 and (group.eval_s > 0 or not self._has_eval)
        limit_s = longest_silence_s(
            step_s=self._step_s,
            commit_s=group.commit_s or memory.commit_s,
            eval_s=group.eval_s or memory.eval_s,
            has_eval=self._has_eval,
        )
        return limit_s if is_own else max(_SILENCE_BY_OTHERS_S, limit_s)
