"""What the controller decides next and what it waits for, as text for people.

Nothing is decided here. The texts and times come from `planner.elastic.step` itself: what it does now, what it would do
if an event came, and what it would do later if only time passed.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from planner.base.text import counted, duration
from planner.elastic.group import silence_limit_s
from planner.elastic.places import unused_places
from planner.elastic.resize_choice import decide, longest_commit_wait_s, longest_warming_s
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
from planner.elastic.step import COALESCE_MOST_S, COALESCE_S, SPARE_S, step
from planner.elastic.stopping import grace_s, leave_s, needed_text, obstacle
from planner.elastic.texts import waiting_text
from planner.elastic.view import Act, View
from planner.errors import PlannerError

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

    text: str
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
            return NextDecision(text=_act_text(act, after), due_s=now_s)
        due_s = _due_s(state, view, now_s)
    except PlannerError as error:  # the group hangs, and it was the last try
        return NextDecision(text=str(error), due_s=now_s)
    if isinstance(state, Running | Warming) and now_s - state.group.seen_s > _SILENCE_SAID_S:
        return _silence(state, now_s)
    return NextDecision(text=_text(state, view, due_s, now_s), due_s=due_s)


def _text(state: State, view: View, due_s: float, now_s: float) -> str:
    if isinstance(state, Running | Warming) and view.leaving:
        return _leaving_text(state, view, due_s, now_s)
    match state:
        case Running():
            text = _running_text(state, view, now_s)
        case Warming():
            text = _warming_text(state, now_s)
        case Stopping():
            text = _stopping_text(state, view, due_s, now_s)
        case Idle() if view.nodes:
            text = "the next group starts when the workers of the last one have ended"
        case Idle() | Waiting():
            text = _waits_for_room(state.known, view, now_s)
        case Ending():
            text = "the run ends"
    return text


# -- when it acts


def _due_s(state: State, view: View, now_s: float) -> float:
    """When `step` acts if nothing but time changes. Infinite if it never does.

    Raises:
        TrainingFailed: it would end the run then.
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
            times += [state.since_s + longest_warming_s(known), state.since_s + waits_s]
        case Stopping(group=group, in_memory=in_memory):
            lived_s = max(state.since_s - group.started_s, known.history.cost.grow_s)
            gone_s = now_s + view.leaves_in_s
            times += [gone_s, state.since_s + grace_s(known, group, in_memory=in_memory), state.since_s + lived_s]
    return times


def _times_of_notice(state: Running | Warming, view: View, now_s: float) -> list[float]:
    notice, gone_s = state.group.notice, now_s + view.leaves_in_s
    needed_s = leave_s(state.known, state.group, view, state.known.room(view, now_s))
    return [
        notice.last_s + COALESCE_S,
        notice.first_s + COALESCE_MOST_S,
        gone_s - needed_s - COALESCE_S,
        gone_s - needed_s - SPARE_S,
    ]


def _room_of(state: Running, view: View, now_s: float) -> int:
    """The room that `step` decides with: a group's own places count until its workers fail."""
    return max(state.known.room(view, now_s), state.group.size)


# -- texts


_STOP = {
    False: "all workers stop at the same step and commit",
    True: "all workers stop at the same step and hand it over in memory",
}
"""by `Act.in_memory`"""


def _act_text(act: Act, after: State) -> str:
    if act.texts:
        return "; ".join(act.texts)
    workers = counted(act.world_size, "worker")
    if act.kind == "stop" and isinstance(after, Stopping) and after.is_growth:
        return f"{_STOP[act.in_memory]}, then up to {counted(after.most, 'worker')} continue"
    return {
        "nothing": "",
        "warm": f"{workers} start beside the group",
        "stop": _STOP[act.in_memory],
        "resize": f"{workers} continue" if act.planned else f"{workers} start",
        "abandon_newcomers": "the newcomers are called off",
        "end": "the run ends",
    }[act.kind]


def _waits_for_room(known: ControllerContext, view: View, now_s: float) -> str:
    """Of a run without a group that trains."""
    text = waiting_text(known, known.room(view, now_s))
    return "; ".join(filter(None, (text, _hold_text(known, view, now_s))))


def _hold_text(known: ControllerContext, view: View, now_s: float) -> str:
    """Why places are not used that are there. Empty if all are used."""
    hold = known.history.hold
    places = min(sum(view.room.values()), known.rules.workers.most)
    if now_s >= hold.until_s or places <= hold.world_size:
        return ""
    most = counted(hold.world_size, "worker")
    return f"on hold: no more than {most} for {duration(hold.until_s - now_s)}, because a start with more failed"


def _running_text(state: Running, view: View, now_s: float) -> str:
    decision = decide(state, _room_of(state, view, now_s), now_s)
    unused = unused_places(state, view, decision, now_s)
    reason = unused.text if unused is not None else f"no resize: {decision.reason}"
    first = "" if state.group.num_steps else "the first step is not done yet"
    return "; ".join(filter(None, (first, reason)))


def _silence(state: Running | Warming, now_s: float) -> NextDecision:
    group = state.group
    limit_s = silence_limit_s(group, state.known.history)
    text = f"no progress for {duration(now_s - group.seen_s)}: planner ends the group after {duration(limit_s)}"
    return NextDecision(text=text, due_s=group.seen_s + limit_s)


def _leaving_text(state: Running | Warming, view: View, due_s: float, now_s: float) -> str:
    known, group = state.known, state.group
    room = known.room(view, now_s)
    gone = sum(node in view.leaving for node in view.nodes)
    left = f"{duration(view.leaves_in_s)} left" if math.isfinite(view.leaves_in_s) else "no deadline"
    notice = f"notice for {counted(gone, 'worker')} of {group.size}, {left}"
    when = f"in {duration(due_s - now_s)}" if math.isfinite(due_s) else "later"
    if room < known.rules.workers.least:
        fits = f"{notice}, and only {counted(room, 'worker')} will fit"
        return f"{fits}: training continues, and stops {when} ({needed_text(known, group)})"
    size = known.rules.useful(min(room, known.rules.workers.most))
    how = "commit" if obstacle(known, group, view, room) else "hand over in memory"
    return f"{notice}: all stop {when} and {how}, then {counted(size, 'worker')} continue"


def _warming_text(state: Warming, now_s: float) -> str:
    took_s, most_s = now_s - state.since_s, longest_warming_s(state.known)
    newcomers = counted(state.world_size - state.group.size, "newcomer")
    return (
        f"{state.group.size} -> {state.world_size} workers as soon as {newcomers} can train "
        f"({duration(took_s)} so far, at most {duration(most_s)})"
    )


def _stopping_text(state: Stopping, view: View, due_s: float, now_s: float) -> str:
    parked = replace(view, parked=frozenset(range(len(view.nodes))))
    after, act = step(state, parked, now_s)
    then = waiting_text(after.known, after.known.room(view, now_s)) if isinstance(after, Waiting) else ""
    how = "copied their step into memory" if state.in_memory else "committed"
    wait = f"{len(view.parked)} of {counted(len(view.nodes), 'worker')} have {how} and parked"
    limit = f" (planner waits {duration(due_s - now_s)} more)" if math.isfinite(due_s) else ""
    return f"{wait}{limit}. Then: {then or _act_text(act, after)}"
