"""Decides for a worker group while it runs, and before it is started: the caller's eyes and hands are Ray's.

`planner.plan.revise` says what a change is worth; this class tells it what it needs to know (`memory.py`), and takes a
resize through its stages:

    running -> (warming newcomers) -> stopping, until every worker is parked -> resized

It knows no Ray and no clock of its own: tests walk it through hours in milliseconds.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from planner.base.text import counted, duration
from planner.elastic.history import Memory
from planner.plan import (
    BatchSizes,
    Decision,
    ResizeCost,
    Situation,
    Speeds,
    choose,
    longest_silence_s,
    longest_unanswered_s,
    revise,
)
from planner.plan import worth_asking as worth_asking_for

# A second notice often follows the first: spot capacity is taken back in batches. Notices give 30 s at least.
_COALESCE_S = 1.0
_COALESCE_MOST_S = 5.0
# Workers park within a step and a commit. Who does not within this time has a reason that waiting will not mend.
_PARK_AT_LEAST_S = 60.0
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
    """ranks whose process has not answered the last question yet; a busy one is late now and then"""
    progress: int = 0
    """units of work that the group's workers have done; a change of this number is progress"""
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
    """time of the last progress, plus the time in which nobody looked"""
    looked_s: float
    stepped_s: float
    """last step, or the start"""
    steps_seen: int = 0
    progress: int = 0
    deaf_since_s: dict[int, float] = field(default_factory=dict)
    """rank -> since when its process has answered nothing"""

    def deaf(self, for_s: float) -> list[int]:
        """Ranks that have not answered for so long. A process that is only busy answers late, and that is nothing."""
        return [rank for rank, since_s in self.deaf_since_s.items() if self.looked_s - since_s > for_s]


@dataclass(frozen=True, kw_only=True)
class _Resize:
    """A resize in progress. Its price is known after the first step of the next group."""

    from_size: int
    spent_s: float
    """seconds without useful training before the decision on the new group"""
    decided_s: float
    forced_at_step: int = -1
    """steps that were done when workers were lost; -1 if all workers had parked"""

    @property
    def is_forced(self) -> bool:
        """Whether steps since the last commit are done again."""
        return self.forced_at_step >= 0


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
        self._resize: _Resize | None = None
        self._said = ""
        self._untold: list[str] = []
        self._is_ending = False
        self._news: list[str] = []

    # -- what the caller saw happen

    def started(self, nodes: tuple[str, ...]) -> None:
        """A group was started; `nodes` by rank."""
        now_s = self._clock()
        self._group = _Group(nodes=nodes, started_s=now_s, seen_s=now_s, looked_s=now_s, stepped_s=now_s)
        self._stopping = self._warming = self._notice_s = None
        self._memory.placed(len(nodes))

    def reported(self, metrics: Mapping[str, Any]) -> None:
        """Rank 0 reported a step: see `planner.train.loop`."""
        group = self._group
        self._memory.reported(metrics)
        if group is None:
            return
        group.seen_s = group.stepped_s = self._clock()
        group.steps_seen += 1
        if group.steps_seen == 1:
            self._measure_resize(group, int(metrics["step"]), float(metrics["seconds"]))
            self._memory.first_step_s = max(self._memory.first_step_s, group.seen_s - group.started_s)
        # The first step of a group also pays for caches, compilation and, in `bitwise`, a repetition.
        if group.steps_seen > 1:
            self._memory.measured_step(int(metrics["world_size"]), float(metrics["seconds"]))

    def committed(self, seconds: float) -> None:
        """The group has parked. Its commit took so many seconds; 0 if everything was committed already."""
        if self._group is not None:
            self._memory.committed(len(self._group.nodes), seconds)

    def failed(self, dead: frozenset[str], blamed: frozenset[str], reason: str) -> None:
        """The group failed. `dead`: nodes that are gone; `blamed`: nodes that live, and whose worker died.

        Raises:
            TrainingFailed: failures that no lost node explains come too often.
        """
        self._resize = self._forced_resize() if dead else None
        self._group = None
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

    def note(self, words: str) -> None:
        """Keep words for the next group's ledger, because no group can write them now."""
        self._untold.append(words)

    def idle(self, view: View) -> Act:
        """No group runs: start one, or wait for nodes."""
        self._group = self._stopping = None
        if self._is_ending:
            return Act(kind="end")
        room = self._room(view)
        self._note_room(room)
        usable = min(room, self._max)
        if usable < self._min:
            return self._wait(usable)
        # The wait for nodes is no part of the price of a loss. A planned change that failed has no price.
        is_forced = self._resize is not None and self._resize.is_forced
        self._resize = replace(self._resize, decided_s=self._clock()) if self._resize and is_forced else None
        return Act(kind="resize", world_size=self._useful(usable))

    def running(self, view: View) -> Act:
        """A group runs: leave it alone, prepare a change, or make it."""
        act = self._running(view)
        news, self._news = tuple(self._news), []
        return replace(act, words=(*news, *act.words))

    def _running(self, view: View) -> Act:
        assert self._group is not None
        self._look_at(self._group, view)
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
        return max(self._min, worth_asking_for(choose(self._sizes, self._max), usable))

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
        """Whether to stop waiting for workers to park: their node goes away, or they hang."""
        deadline_s, waited_s = self._deadline_s(view), self._clock() - stopping.began_s
        if deadline_s <= 0 and waited_s > self._grace_s:
            return True
        # Also before a node goes: notices of hours are given, and a hang has no use for them.
        return waited_s > max(_PARK_AT_LEAST_S, 10 * self._stop_s) and self._is_hung

    def _gives_up_first_step(self, view: View, stopping: _Stopping) -> bool:
        """Whether a growth has waited for a group's first step for as long as that group had lived before.

        Nothing is done yet but a part of that step. To wait as long again at most doubles what is lost (ski rental).
        Who has lost the places for more meanwhile, or was given notice, gains nothing by beginning it again.
        """
        group = self._group
        assert group is not None
        usable = min(self._room(view), stopping.target)
        if group.steps_seen or usable < self._min or self._useful(usable) <= len(group.nodes):
            return False
        lived_s, waited_s = stopping.began_s - group.started_s, self._clock() - stopping.began_s
        return waited_s > max(lived_s, self._memory.cost.grow_s)

    def _await_parked(self, view: View, stopping: _Stopping) -> Act:
        """All parked: on to what the cluster holds by now. Too late: on without those who are not."""
        assert self._group is not None
        parked = len(view.parked) == len(view.nodes)
        gives_up = not view.parked and self._gives_up_first_step(view, stopping)
        if not (parked or gives_up or self._is_late(view, stopping)):
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
            self._untold.append(
                f"the first step is not done after {waited} more: it is begun again with more workers"
                if gives_up
                else f"{missing} had not parked after {waited}: steps since the last commit are done again"
            )
            self._resize = None if gives_up else self._forced_resize()
            return Act(kind="resize", world_size=self._useful(usable) if usable >= self._min else len(view.nodes))
        if usable < self._min:
            # Nothing is lost: new nodes may come before the old ones go. The wait for them is no part of any price.
            self._group.stepped_s = self._clock()
            return self._wait(usable)
        # Who was not started beforehand would keep all the others waiting.
        size = min(self._useful(usable), stopping.target or usable)
        self._resize = _Resize(
            from_size=stopping.from_size,
            spent_s=self._memory.commit_s(stopping.from_size),
            decided_s=self._clock(),
        )
        return Act(kind="resize", world_size=size, planned=True)

    def _urgent(self, view: View) -> Act | None:
        assert self._group is not None
        if self._is_ending and not self._group.steps_seen:
            return Act(kind="end")  # nothing was done yet that could be lost
        if self._is_ending:
            return self._stop(view, "", ("the driver stops the run",))
        return self._hang(view)

    def _look_at(self, group: _Group, view: View) -> None:
        now_s = self._clock()
        if view.progress != group.progress:
            group.seen_s, group.progress = now_s, view.progress
        unseen_s = max(now_s - group.looked_s - _LOOK_MOST_S, 0.0)
        group.seen_s, group.looked_s = min(group.seen_s + unseen_s, now_s), now_s
        since_s = group.deaf_since_s
        group.deaf_since_s = {rank: min(since_s.get(rank, now_s) + unseen_s, now_s) for rank in view.silent}

    def _hang(self, view: View) -> Act | None:
        """End the group if no worker makes progress and none failed. Collectives would time out much later."""
        assert self._group is not None
        if not self._is_hung:
            return None
        deaf_ranks = self._group.deaf(self._deafness_s)
        blamed = frozenset(view.nodes[rank] for rank in deaf_ranks)
        silence_s = self._clock() - self._group.seen_s
        deaf = f", and {counted(len(deaf_ranks), 'worker')} did not answer" if deaf_ranks else ""
        limit_s = self._deafness_s if deaf_ranks else self._silence_s
        reason = f"no progress for {duration(silence_s)}{deaf}; the limit was {duration(limit_s)}"
        self.failed(frozenset(), blamed, reason)
        return Act(kind="resize", world_size=self.idle(view).world_size or len(view.nodes))

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
            plan=choose(self._sizes, size),
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

    def _forced_resize(self) -> _Resize | None:
        """The resize after a group that ended without a commit; none if no group ran."""
        group = self._group
        if group is None:
            return None
        now_s = self._clock()
        return _Resize(
            from_size=len(group.nodes),
            spent_s=now_s - group.stepped_s,
            decided_s=now_s,
            forced_at_step=self._memory.step,
        )

    def _measure_resize(self, group: _Group, step: int, first_step_s: float) -> None:
        """Record the price of the resize that made this group. Its first step took `first_step_s`.

        price = commit or work in vain + decision to the first step's begin + steps done again
        """
        resize, self._resize = self._resize, None
        if resize is None:
            return
        again = max(resize.forced_at_step - step, 0)
        again_s = again * self._memory.step_s(resize.from_size)
        price_s = resize.spent_s + max(group.seen_s - first_step_s - resize.decided_s, 0.0) + again_s
        size = len(group.nodes)
        is_growth = size > resize.from_size and not resize.is_forced
        (self._memory.grow_s if is_growth else self._memory.shrink_s).append(price_s)
        done_again = f", with {counted(again, 'step')} done again" if again else ""
        self._news.append(f"{resize.from_size} -> {size} workers cost {duration(price_s)} of training{done_again}")

    @property
    def _step_s(self) -> float:
        """Of the group that runs; 0 if none was measured yet."""
        return self._memory.step_s(len(self._group.nodes)) if self._group else 0.0

    @property
    def _commit_s(self) -> float:
        """Seconds of a commit of the current group; 0 before the first one."""
        return self._memory.commit_s(len(self._group.nodes)) if self._group else 0.0

    @property
    def _stop_s(self) -> float:
        """What it takes to finish a step, or an evaluation, and commit."""
        return 2 * self._step_s + 1.5 * (self._commit_s + self._memory.eval_s)

    @property
    def _grace_s(self) -> float:
        """From the signal to stop, whatever was named: as long as it is likely to be enough, else not at all."""
        if not (self._step_s and self._commit_s and (self._memory.eval_s or not self._has_eval)):
            return _GRACE_MOST_S
        if self._stop_s > _GRACE_MOST_S:
            return 0.0
        return min(max(_GRACE_LEAST_S, 2 * self._stop_s), _GRACE_MOST_S)

    @property
    def _is_hung(self) -> bool:
        """Whether no worker has made progress for too long; sooner, if one of them has answered nothing as long."""
        group = self._group
        assert group is not None
        unmoved_s, deafness_s = self._clock() - group.seen_s, self._deafness_s
        return unmoved_s > self._silence_s or (unmoved_s > deafness_s and bool(group.deaf(deafness_s)))

    @property
    def _deafness_s(self) -> float:
        """For how long no worker may make progress while one answers nothing."""
        assert self._group is not None
        size = len(self._group.nodes)
        return longest_unanswered_s(round_s=self._memory.round_s(size), commit_s=self._memory.commit_s(size))

    @property
    def _silence_s(self) -> float:
        """For how long no worker may make progress."""
        assert self._group is not None
        memory, size = self._memory, len(self._group.nodes)
        commit_s = memory.commit_s(size)
        limit_s = longest_silence_s(round_s=memory.round_s(size), commit_s=commit_s)
        if self._group.steps_seen:
            return limit_s
        # The commit is read again, perhaps by fewer workers, and kernels are compiled again.
        return max(limit_s, 10 * memory.first_step_s + 5 * commit_s)
