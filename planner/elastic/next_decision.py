"""What the controller decides next and what it waits for.

Nothing is decided here. The events and times come from `planner.elastic.step` itself: what it does now, what it would
do if an event came, and what it would do later if only time passed.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from planner.elastic.floor import waits_for_floor
from planner.elastic.group import silence_limit_s
from planner.elastic.mistakes import GaveUp
from planner.elastic.places import unused_places
from planner.elastic.resize_choice import decide, first_step_due_s, longest_commit_wait_s, longest_warming_s
from planner.elastic.states import (
    ControllerContext,
    Ending,
    Idle,
    Running,
    State,
    Stopping,
    Waiting,
    Warming,
)
from planner.elastic.step import COALESCE_MOST_S, COALESCE_S, SPARE_S, finite, step, waits_for_room
from planner.elastic.stopping import grace_s, in_flight_s, leave_s, obstacle, stop_needs
from planner.elastic.view import Act, View
from planner.events.event import Event
from planner.events.outlook import (
    AwaitsNewcomers,
    AwaitsParked,
    FirstStepPending,
    HoldLasts,
    NoResize,
    NoticeRuns,
    OldGroupEnds,
    RunEnds,
    Silence,
    WillStart,
    WillStop,
)
from planner.events.stopping import AwaitsCommit, AwaitsFirstStep

WorkerState = Literal["starting", "training", "leaving", "stopping", "parked", "warming"]
"""`leaving`: trains, and its node has notice. `warming`: a newcomer, not yet in the group"""

# `step` compares some times strictly, and differences of floats are not exact.
_AFTER_S = 1e-3
# A decision may be postponed again when its time comes. Each rule does so at most a few times.
_MOST_LOOKS_AHEAD = 12
# Workers are asked for their progress every 5 s.
_SILENCE_SAID_S = 15.0


@dataclass(frozen=True, kw_only=True)
class NextDecision:
    """The next decision of the controller."""

    events: tuple[Event, ...]
    """one, or several that are said together"""
    due_s: float = math.inf
    """when `step` acts if nothing but time changes, on the controller's clock. Infinite if it waits for an event"""


def worker_states(state: State, view: View) -> tuple[WorkerState, ...]:
    """What each worker of the group does, by rank."""
    return tuple(_worker_state(state, view, rank) for rank in range(len(view.nodes)))


def _worker_state(state: State, view: View, rank: int) -> WorkerState:
    if rank in view.parked:
        return "parked"
    if isinstance(state, Stopping | Waiting | Idle | Ending):
        return "stopping"
    if view.nodes[rank] in view.draining:
        return "leaving"
    return "training" if state.group.num_steps else "starting"


def next_decision(state: State, view: View, now_s: float) -> NextDecision:
    """The next decision, and what it waits for. Any state.

    Args:
        state: as `step` returned it.
        view: the view that `step` was called with.
        now_s: the time that `step` was called with.
    """
    try:
        after, act = step(state, view, now_s)
        if act.kind != "nothing":
            return NextDecision(events=_does(act, after), due_s=now_s)
        due_s = _due_s(state, view, now_s)
    except GaveUp as error:  # the group hangs, and it was the last try
        return NextDecision(events=(error.event,), due_s=now_s)
    if isinstance(state, Running | Warming) and now_s - state.group.seen_s > _SILENCE_SAID_S:
        return _silence(state, due_s, now_s)
    return NextDecision(events=_awaits(state, view, due_s, now_s), due_s=due_s)


def _awaits(state: State, view: View, due_s: float, now_s: float) -> tuple[Event, ...]:
    match state:
        case Running() | Warming() if view.leaving:
            return (_notice_runs(state, view, due_s, now_s),)
        case Running():
            return _awaits_change(state, view, now_s)
        case Warming():
            return (_awaits_larger_group(state, now_s),)
        case Stopping():
            return (_awaits_parked(state, view, due_s, now_s),)
        case Idle() | Waiting():
            is_old_there = isinstance(state, Idle) and bool(view.nodes)
            return (OldGroupEnds(),) if is_old_there else _awaits_room(state.known, view, now_s)
        case Ending():
            return (RunEnds(),)


# -- when it acts


def _due_s(state: State, view: View, now_s: float) -> float:
    """When `step` acts if nothing but time changes. Infinite if it never does.

    Raises:
        GaveUp: it would end the run then.
    """
    at_s = now_s
    for _ in range(_MOST_LOOKS_AHEAD):
        later = _later(view, at_s - now_s)
        # A time that has just passed still counts: to `step` it may lie ahead by a rounding error.
        ahead = (time_s for time_s in _times(state, later, at_s) if time_s > at_s - _AFTER_S / 2)
        at_s = min(ahead, default=math.inf) + _AFTER_S
        if math.isinf(at_s):
            return at_s
        state, act = step(state, _later(view, at_s - now_s), at_s)
        if act.kind != "nothing":
            return at_s
    return math.inf


def _later(view: View, seconds: float) -> View:
    """The view after some seconds in which the workers went on and nothing else changed."""
    draining = {node: max(in_s - seconds, 0.0) for node, in_s in view.draining.items()}
    return replace(view, draining=draining, progress=view.progress + 1, silent=frozenset())


def _times(state: State, view: View, now_s: float) -> list[float]:
    """The times at which the answer of `step` may change by itself."""
    known = state.known
    times = [known.history.hold.until_s]
    match state:
        case Running() | Warming() if view.leaving:
            times += _times_of_notice(state, view, now_s)
        case Running():
            times.append(decide(state, _room_of(state, view, now_s), now_s).until_s)
        case Warming():
            waits_s = longest_commit_wait_s(known, state.group)
            times += [state.since_s + longest_warming_s(known), state.since_s + waits_s, first_step_due_s(state)]
        case Stopping(group=group, in_memory=in_memory):
            gone_s = now_s + view.leaves_in_s
            times += [gone_s, state.since_s + grace_s(known, group, in_memory=in_memory), state.gives_up_s]
    return times


def _times_of_notice(state: Running | Warming, view: View, now_s: float) -> list[float]:
    notice, gone_s = state.group.notice, now_s + view.leaves_in_s
    known, group = state.known, state.group
    needed_s = leave_s(known, group, view, known.room(view, now_s))
    # While a step goes on, a stop needs less by as much as passes. From when it should be done, no more.
    overdue_s = needed_s - (known.history.step_s(group.size) - in_flight_s(known, group))
    return [
        notice.last_s + COALESCE_S,
        notice.first_s + COALESCE_MOST_S,
        *(gone_s - each_s - COALESCE_S for each_s in (needed_s, overdue_s)),
        *(gone_s - each_s - SPARE_S for each_s in (needed_s, overdue_s)),
    ]


def _room_of(state: Running, view: View, now_s: float) -> int:
    """The room that `step` decides with: a group's own places count until its workers fail."""
    return max(state.known.room(view, now_s), state.group.size)


# -- what it does, and what it waits for


def _does(act: Act, after: State) -> tuple[Event, ...]:
    """What an act does, by the events that it tells if there are any."""
    if act.events:
        return act.events
    if act.kind == "end":
        return (RunEnds(),)
    if isinstance(after, Stopping):
        return (WillStop(in_memory=act.in_memory, most=after.most),)
    return (WillStart(size=act.world_size, planned=act.planned),)


def _awaits_room(known: ControllerContext, view: View, now_s: float) -> tuple[Event, ...]:
    """Of a run without a group that trains: the room, and why places are not used that are there."""
    if (floor := waits_for_floor(known, view, now_s)) is not None:
        return (floor,)
    waits, hold = waits_for_room(known, known.room(view, now_s)), known.history.hold
    places = min(sum(view.room.values()), known.rules.workers.most)
    if now_s >= hold.until_s or places <= hold.world_size:
        return (waits,)
    return waits, HoldLasts(most=hold.world_size, left_s=hold.until_s - now_s)


def _awaits_change(state: Running, view: View, now_s: float) -> tuple[Event, ...]:
    decision = decide(state, _room_of(state, view, now_s), now_s)
    reason = unused_places(state, view, decision, now_s) or NoResize(reason=decision.reason)
    return (reason,) if state.group.num_steps else (FirstStepPending(), reason)


def _silence(state: Running | Warming, due_s: float, now_s: float) -> NextDecision:
    group = state.group
    limit_s = silence_limit_s(group, state.known.history)
    silence = Silence(silence_s=now_s - group.seen_s, limit_s=limit_s)
    return NextDecision(events=(silence,), due_s=min(due_s, group.seen_s + limit_s))


def _notice_runs(state: Running | Warming, view: View, due_s: float, now_s: float) -> NoticeRuns:
    known, group = state.known, state.group
    rules, room = known.rules, known.room(view, now_s)
    return NoticeRuns(
        leaving=sum(node in view.leaving for node in view.nodes),
        size=group.size,
        left_s=finite(view.leaves_in_s),
        stops_in_s=finite(due_s - now_s),
        room=room,
        to=rules.useful(min(room, rules.workers.most)) if room >= rules.workers.least else None,
        in_memory=obstacle(known, group, view, room) is None,
        needs=stop_needs(known, group),
    )


def _awaits_larger_group(state: Warming, now_s: float) -> Event:
    """What a larger group waits for: its newcomers, then the first step of the one that trains, then a commit."""
    is_ready = math.isfinite(state.ready_s)
    if is_ready and not state.group.num_steps:
        return AwaitsFirstStep(to=state.world_size, most_s=first_step_due_s(state) - now_s)
    if is_ready:
        return AwaitsCommit(since_step=state.group.began_step)
    return AwaitsNewcomers(
        size=state.group.size,
        to=state.world_size,
        so_far_s=now_s - state.since_s,
        most_s=longest_warming_s(state.known),
    )


def _awaits_parked(state: Stopping, view: View, due_s: float, now_s: float) -> AwaitsParked:
    parked = replace(view, parked=frozenset(range(len(view.nodes))))
    after, act = step(state, parked, now_s)
    waits = isinstance(after, Waiting)
    return AwaitsParked(
        parked=len(view.parked),
        size=len(view.nodes),
        in_memory=state.in_memory,
        left_s=finite(due_s - now_s),
        then=(waits_for_room(after.known, after.known.room(view, now_s)),) if waits else _does(act, after),
    )
