"""The decisions of the elastic controller. `step` is a pure function from a state and a view to a state and an act.

    Idle -> Running -> (Warming ->) Stopping, until every worker has parked -> Idle, for the next group

`planner.plan.revise` computes whether a change pays. Each docstring names the states that its function can return.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from planner.elastic.cuts import growth_cut, notice_cut
from planner.elastic.floor import waits_for_floor
from planner.elastic.group import Group, GroupNotice, hang, is_hung
from planner.elastic.mistakes import Mistake
from planner.elastic.pause import ForcedPause, NotAResize, Pause, PlannedPause
from planner.elastic.places import is_news, key_of, unused_places
from planner.elastic.resize_choice import (
    decide,
    first_step_due_s,
    longest_commit_wait_s,
    longest_warming_s,
    most_after,
    ski_rental_s,
    usual_warming_s,
)
from planner.elastic.states import ControllerContext, Ending, Idle, Running, State, Stopping, Waiting, Warming
from planner.elastic.stopping import cannot_hold, grace_s, hand_over_s, leave_s, obstacle, stop_needs, stop_s
from planner.elastic.view import Act, View
from planner.events.event import Event
from planner.events.failures import OutOfMemory, ParkTimedOut
from planner.events.sizing import PlacesUnused, Resizes, Waited
from planner.events.stopping import (
    AwaitsCommit,
    AwaitsFirstStep,
    BecomesDurable,
    DriverStops,
    EndsWithLoss,
    FirstStepGivenUp,
    HandsOver,
    NewcomerFailed,
    NewcomersCalledOff,
    NewcomersLate,
    Notice,
    NoticeSuffices,
    NoticeTooShort,
    NoticeWithdrawn,
    NotParked,
    ReplacementsStart,
    RoomShrank,
    TrainsOn,
    UsesNotice,
    WaitsForRoom,
)

# A second notice often follows the first: spot capacity is taken back in batches. Clouds give at least 30 s.
COALESCE_S = 1.0
COALESCE_MOST_S = 5.0
# Workers park within a step and a commit. If a worker takes longer than this, waiting more does not help.
_PARK_AT_LEAST_S = 60.0
# A group that uses its notice trains until this long before the last moment to stop.
SPARE_S = 5.0
# Spot capacity gives notice of 30 s to 120 s. A longer one is an operator's, who wants the node back.
_SHORT_NOTICE_S = 150.0
# A shorter wait for nodes is part of a pause.
_LEAST_WAIT_S = 1.0


def step(state: State, view: View, now_s: float) -> tuple[State, Act]:
    """The next state, and what to do now. Any state.

    Raises:
        GaveUp: the group hangs, and there were too many failures that no lost node explains.
    """
    state, act = _next(_seen(state, view, now_s), view, now_s)
    if not view.nodes or isinstance(state, Idle):
        return state, act  # no group runs that could write the events
    known = state.known
    waited = (Waited(waited_s=known.waited_s),) if known.waited_s >= _LEAST_WAIT_S else ()
    act = replace(act, events=(*known.events, *act.events, *waited))
    return replace(state, known=replace(known, events=(), waited_s=0.0)), act


def _seen(state: State, view: View, now_s: float) -> State:
    """The state with the view's progress of its group. `Idle` if the group has ended."""
    if isinstance(state, Idle | Ending):
        return state
    if not view.nodes:
        return Idle(known=state.known, pause=state.group.pause)
    state = replace(state, group=state.group.seen(view, now_s))
    return _noting_ready(state, view, now_s) if isinstance(state, Warming) else state


def _noting_ready(state: Warming, view: View, now_s: float) -> Warming:
    """The state that has since when its newcomers are ready, and how long they took. Also while a notice is used."""
    if view.newcomers != "ready" or math.isfinite(state.ready_s):
        return state
    history = state.known.history.after_newcomers(now_s - state.since_s)
    return replace(state, known=replace(state.known, history=history), ready_s=now_s)


def _next(state: State, view: View, now_s: float) -> tuple[State, Act]:
    match state:
        case Ending():
            return state, Act(kind="end")
        case Idle():
            return _start(state, view, now_s)
        case Running() | Warming():
            return _train(state, view, now_s)
        case Stopping():
            return _await_parked(state, view, now_s)
        case Waiting():
            return _go_on(state, view, now_s)


# -- no group runs


def _start(state: Idle, view: View, now_s: float) -> tuple[State, Act]:
    """Start a group, or wait for nodes. `Idle` until the caller reports that a group was started, or `Ending`."""
    workers, room = state.known.rules.workers, state.known.room(view, now_s)
    if view.is_ending and not (state.known.unsaved_step and room >= workers.least):
        return _end(state.known)
    if view.nodes:
        return state, Act()  # the abandoned group has not ended yet
    known = state.known.with_room(view, now_s)
    lacking = waits_for_floor(known, view, now_s)
    if lacking is not None or room < workers.least:
        waits = lacking or waits_for_room(known, room)
        return _telling_once(replace(state, known=known.waiting(now_s)), waits, waits.room)
    # A planned resize that failed gives no cost to measure.
    pause = replace(state.pause, decided_s=now_s) if isinstance(state.pause, ForcedPause) else NotAResize()
    size = known.rules.useful(min(room, workers.most))
    return Idle(known=known.after_wait(now_s), pause=pause), Act(kind="resize", world_size=size)


def _end(known: ControllerContext, group: Group | None = None) -> tuple[State, Act]:
    """End the run, and say what is lost if the newest step is only in memory. `Ending`."""
    if not known.unsaved_step:
        return Ending(known=known), Act(kind="end")
    loss = EndsWithLoss(
        step=known.held_only_step or known.unsaved_step,
        is_sure=known.held_only_step > 0,
        durable_step=group.durable_step if group is not None else 0,
    )
    return Ending(known=known), Act(kind="end", events=(loss,))


# -- a group trains


def _train(state: Running | Warming, view: View, now_s: float) -> tuple[State, Act]:
    """Keep the group, prepare a change, or make it. `Running`, `Warming`, `Stopping`, `Idle`, or `Ending`."""
    if view.is_ending and not (state.group.num_steps or state.known.unsaved_step):
        return _end(state.known)  # no step is done, so nothing is lost
    if view.is_ending:
        return _stop(state, now_s, DriverStops())
    if is_hung(state.group, state.known.history, now_s):
        return _end_hung(state, view, now_s)
    room = state.known.room(view, now_s)
    if view.leaving:
        return _leave(state, view, room, now_s)
    # If a node of the group has just died, its workers fail. Until then, the group's own places count as room.
    room = max(room, state.group.size)
    known = state.known.with_room(view, now_s, state.group.size)
    if state.group.notice.nodes:  # withdrawn: the next notice is news, and needs newcomers of its own
        known = replace(known, told_once=None)
    state = replace(state, known=known, group=replace(state.group, notice=GroupNotice()))
    if isinstance(state, Warming):
        return _await_newcomers(state, view, room, now_s)
    return _consider(state, view, room, now_s)


def _consider(state: Running, view: View, room: int, now_s: float) -> tuple[State, Act]:
    """Start newcomers if more workers pay. Otherwise tell why places stay unused. `Running` or `Warming`."""
    size = state.group.size
    decision = decide(state, room, now_s)
    if decision.kind != "resize":
        return _telling_unused(state, unused_places(state, view, decision, now_s))
    # Newcomers start and import while the group still trains. The group stops only when they are ready.
    warming = Warming(
        known=state.known,
        group=state.group,
        since_s=now_s,
        world_size=decision.world_size,
    )
    told = Resizes(to=decision.world_size, reason=decision.reason)
    return warming, Act(kind="warm", world_size=decision.world_size - size, events=(told,))


def _await_newcomers(state: Warming, view: View, room: int, now_s: float) -> tuple[State, Act]:
    """Stop the group when the newcomers are ready, or call them off. `Warming`, `Running`, or `Stopping`.

    The decision is not revised while there is room for it: otherwise processes would start and end again and again.
    """
    known, took_s = state.known, now_s - state.since_s
    is_late = view.newcomers == "warming" and took_s > longest_warming_s(known)
    if is_late:
        known = replace(known, history=known.history.after_late_newcomers())
    if state.world_size <= state.group.size:  # they were to take the places of workers with notice
        return _call_off(state, known, NoticeWithdrawn())
    if room < state.world_size:
        return _call_off(state, known, RoomShrank(room=room))
    if view.newcomers == "failed" or is_late:
        failure = NewcomersLate(after_s=took_s) if is_late else NewcomerFailed()
        history, reason = known.history.with_hold(state.group.size, failure, now_s)
        return _call_off(state, replace(known, history=history), reason)
    if view.newcomers == "warming":
        return state, Act()
    return _make_way(state, view, room, now_s)


def _make_way(state: Warming, view: View, room: int, now_s: float) -> tuple[State, Act]:
    """Stop the group for newcomers that are ready, when it has done a step. `Warming` or `Stopping`."""
    known = state.known
    due_s = first_step_due_s(state)
    if not state.group.num_steps and now_s < due_s:
        return _telling_once(state, AwaitsFirstStep(to=state.world_size, most_s=due_s - now_s), 0)
    if _waits_for_commit(state, view, now_s):
        # It is told once however many groups wait for it, so it has no room of its own.
        return _telling_once(state, AwaitsCommit(since_step=state.group.began_step), 0)
    in_memory = not obstacle(known, state.group, view, room)
    cut = growth_cut(known, state.group, state.world_size)
    stopping = Stopping(
        known=known,
        group=state.group,
        since_s=now_s,
        most=most_after(state),
        gives_up_s=max(ski_rental_s(state), now_s + known.history.cost.grow_s),
        in_memory=in_memory,
        cut=cut is not None,
    )
    return stopping, Act(kind="stop", events=(cut,) if cut else (), in_memory=in_memory, cut=stopping.cut)


def _waits_for_commit(state: Warming, view: View, now_s: float) -> bool:
    """Whether newcomers wait for the commit in flight: after it, the stop can stay in memory.

    Training goes on meanwhile. A durable stop would stand still for that commit, and for one more.
    """
    is_due = now_s - state.since_s > longest_commit_wait_s(state.known, state.group)
    return view.can_hold and state.group.num_steps > 0 and not (state.group.is_fresh or is_due)


def _call_off(state: Warming, known: ControllerContext, reason: Event) -> tuple[State, Act]:
    """End the newcomers and continue training. `Running`."""
    act = Act(kind="abandon_newcomers", events=(NewcomersCalledOff(reason=reason),))
    return Running(known=known, group=state.group), act


def _leave(state: Running | Warming, view: View, room: int, now_s: float) -> tuple[State, Act]:
    """Stop all workers before the nodes with notice go. The same state, or `Stopping`."""
    notice = state.group.notice.with_nodes(view.leaving, now_s)
    state = replace(state, group=replace(state.group, notice=notice))
    needed_s = leave_s(state.known, state.group, view, room)
    if view.leaves_in_s > needed_s + SPARE_S and (uses := _uses_notice(state, view, room, now_s)):
        return _train_on(state, view, uses, room, now_s)
    if view.leaves_in_s - needed_s > COALESCE_S and _more_may_follow(notice, now_s):
        return state, Act()
    known = replace(state.known.with_room(view, now_s), told_once=None)
    state = replace(state, known=replace(known, history=known.history.after_forced(state.group.started_s, now_s)))
    cut = notice_cut(known, state.group, view, room)
    # A cut keeps all steps that are done, so what a stop at the end of the step needs does not matter.
    told = _notice(state, view, room)
    events = (told[0], cut) if cut else told
    in_memory = not obstacle(state.known, state.group, view, room)
    return _stop(state, now_s, *events, in_memory=in_memory, cut=cut is not None)


def _more_may_follow(notice: GroupNotice, now_s: float) -> bool:
    """Whether another notice may soon follow the last one."""
    return now_s - notice.last_s < COALESCE_S and now_s - notice.first_s < COALESCE_MOST_S


def _uses_notice(state: Running | Warming, view: View, room: int, now_s: float) -> Event | None:
    """Why the group may train on after a notice, as long as there is time. None if it stops at once."""
    known, group, left_s = state.known, state.group, view.leaves_in_s
    needs = stop_needs(known, group)
    if room < known.rules.workers.least:  # it could not start again
        return TrainsOn(room=room, needs=needs, left_s=finite(left_s))
    is_short = left_s + now_s - group.notice.first_s <= _SHORT_NOTICE_S
    if not is_short or needs.lacks or known.rules.useful(min(room, known.rules.workers.most)) > group.size:
        return None
    leaving = sum(node in view.leaving for node in view.nodes)
    stops_s = leave_s(known, group, view, room) + SPARE_S
    return UsesNotice(leaving=leaving, size=group.size, room=room, left_s=left_s, stops_s=stops_s)


def _train_on(state: Running | Warming, view: View, uses: Event, room: int, now_s: float) -> tuple[State, Act]:
    """Train on after a notice, and start newcomers for the workers that go if there is room and time for it.

    The same state, `Warming`, or `Running` if a newcomer failed: then the group stops later without newcomers.
    """
    if isinstance(state, Warming) and view.newcomers == "failed":
        return _call_off(state, state.known, NewcomerFailed())
    newcomers = _replacements(state, uses, room)
    if newcomers is not None and _more_may_follow(state.group.notice, now_s):
        return state, Act()
    told, act = _telling_once(state, uses, room)
    if newcomers is None or not act.events:
        return told, act
    warming = Warming(known=told.known, group=state.group, since_s=now_s, world_size=newcomers.to)
    return warming, Act(kind="warm", world_size=newcomers.newcomers, events=(uses, newcomers))


def _replacements(state: Running | Warming, uses: Event, room: int) -> ReplacementsStart | None:
    """The newcomers for the workers that go. None if there is no room or no time for any, or some start already."""
    if not (isinstance(state, Running) and isinstance(uses, UsesNotice)):
        return None
    known, staying = state.known, state.group.size - uses.leaving
    size = known.rules.useful(min(room, known.rules.workers.most))
    if size <= staying or uses.left_s - uses.stops_s < usual_warming_s(known):
        return None
    return ReplacementsStart(newcomers=size - staying, to=size)


def _stop(
    state: Running | Warming, now_s: float, *events: Event, in_memory: bool = False, cut: bool = False
) -> tuple[State, Act]:
    """Tell the group to stop, and end the newcomers. `Stopping`."""
    stopping = Stopping(
        known=state.known,
        group=state.group,
        since_s=now_s,
        most=state.known.rules.workers.most,
        in_memory=in_memory,
        cut=cut,
    )
    return stopping, Act(kind="stop", events=events, in_memory=in_memory, cut=cut)


def _notice(state: Running | Warming, view: View, room: int) -> tuple[Event, ...]:
    """The notice, and how the group stops, or whether the notice may be too short for a commit.

    If the run cannot continue on other nodes, the second one also says that the time suffices.
    """
    known, group, deadline_s = state.known, state.group, view.leaves_in_s
    why_durable = obstacle(known, group, view, room)
    notice = Notice(
        leaving=sum(node in view.leaving for node in view.nodes),
        size=group.size,
        left_s=finite(deadline_s),
        room=room,
        obstacle=why_durable if view.can_hold else None,
    )
    if why_durable is None:
        allowed_s = hand_over_s(known, group) if known.history.hand_over_pauses else None
        return notice, HandsOver(allowed_s=allowed_s)
    needs, patience_s = stop_needs(known, group), grace_s(known, group)
    if needs.stop_s <= deadline_s:
        return (notice,) if room >= known.rules.workers.least else (notice, NoticeSuffices(needs=needs))
    return notice, NoticeTooShort(needs=needs, tries_s=patience_s if deadline_s < patience_s else None)


def _end_hung(state: Running | Warming, view: View, now_s: float) -> tuple[State, Act]:
    """End a group in which no worker makes progress and none has failed. `Idle`.

    Collectives would time out much later.
    """
    reason, deaf_ranks = hang(state.group, state.known.history, now_s)
    blamed = frozenset(view.nodes[rank] for rank in deaf_ranks)
    known = after_failure(state.known, blamed, reason, now_s)
    room = known.room(view, now_s)
    return _start_again(known.with_room(view, now_s), state.group, room, NotAResize())


# -- a group stops


def _await_parked(state: Stopping, view: View, now_s: float) -> tuple[State, Act]:
    """Wait for all workers to park, but not for too long. Then start a group that fits the cluster.

    `Stopping`, `Waiting`, `Idle`, or `Ending`.
    """
    if view.all_parked:
        return _go_on(state, view, now_s)
    gives_up = not view.parked and _gives_up_first_step(state, view, now_s)
    if not (gives_up or _is_late(state, view, now_s)):
        return _keep_waiting(state, view, now_s)
    if view.is_ending:
        return _end_unparked(state, view, now_s)
    known, room = _room_after_stop(state, view, now_s)
    if gives_up:
        known = known.telling(FirstStepGivenUp(after_s=now_s - state.group.started_s))
        return _start_again(known, state.group, room, NotAResize())
    missing = len(view.nodes) - len(view.parked)
    known = known.telling(NotParked(workers=missing, after_s=now_s - state.since_s, from_memory=state.group.can_hold))
    return _start_again(known, state.group, room, forced_pause(state.group, now_s))


def _keep_waiting(state: Stopping, view: View, now_s: float) -> tuple[State, Act]:
    """Wait on. A stop in memory becomes durable if memory, or the time until another node goes, is not enough any more.

    If another node goes before the step in flight is done and saved, that is given up. `Stopping`.
    """
    known, room = _room_after_stop(state, view, now_s)
    group, state = state.group, replace(state, known=known)
    has_news = not view.leaving <= group.notice.nodes
    state = replace(state, group=replace(group, notice=group.notice.with_nodes(view.leaving, now_s)))
    events = tuple[Event, ...]()
    if state.in_memory and (
        reason := obstacle(known, group, view, room) if has_news else cannot_hold(known, view, room)
    ):
        state, events = replace(state, in_memory=False), (BecomesDurable(obstacle=reason),)
    if has_news and not (state.cut or view.parked) and (cut := notice_cut(known, group, view, room)):
        state, events = replace(state, cut=True), (*events, cut)
    return state, Act(kind="stop", events=events, in_memory=state.in_memory, cut=state.cut) if events else Act()


def _end_unparked(state: Stopping, view: View, now_s: float) -> tuple[State, Act]:
    """End the run without the workers that have not parked. `Ending` or `Idle`.

    If a step is only in memory, another group first tries to make it durable. Too many tries end the run.
    """
    known, room = _room_after_stop(state, view, now_s)
    if not known.unsaved_step or room < known.rules.workers.least:
        return _end(known, state.group)
    reason = ParkTimedOut(after_s=now_s - state.since_s)
    return _start_again(after_failure(known, frozenset(), reason, now_s), state.group, room, NotAResize())


def _go_on(state: Stopping | Waiting, view: View, now_s: float) -> tuple[State, Act]:
    """Start the next group now that all have parked. `Idle`, `Waiting`, or `Ending`.

    If the run ends and the last step is only in memory, a group makes it durable first.
    """
    known, room = _room_after_stop(state, view, now_s)
    rules, group = known.rules, state.group
    if view.is_ending and not (group.is_held and room >= rules.workers.least):
        return _end(state.known, group)
    if room < rules.workers.least:
        # Nothing is lost: new nodes may come before the old ones go. The wait is no part of a resize's cost.
        waiting = Waiting(known=known.waiting(now_s), group=replace(group, stepped_s=now_s), most=state.most)
        return _telling_once(waiting, waits_for_room(known, room), room)
    size = min(rules.useful(min(room, rules.workers.most)), state.most)
    pause = PlannedPause(
        from_size=group.size, durable_after_s=group.durable_after_s, decided_s=now_s, is_held=group.is_held
    )
    return Idle(known=known.after_wait(now_s), pause=pause), Act(kind="resize", world_size=size, planned=True)


def _room_after_stop(state: Stopping | Waiting, view: View, now_s: float) -> tuple[ControllerContext, int]:
    """The room for the next group, at least the old group's size if none of its nodes has notice."""
    least = 0 if view.leaving else state.group.size
    return state.known.with_room(view, now_s, least), max(state.known.room(view, now_s), least)


def _start_again(known: ControllerContext, group: Group, room: int, pause: Pause) -> tuple[State, Act]:
    """Start another group from the newest copy or commit, of the same size if no other is known to fit. `Idle`."""
    workers = known.rules.workers
    size = known.rules.useful(min(room, workers.most)) if room >= workers.least else group.size
    return Idle(known=known, pause=pause), Act(kind="resize", world_size=size)


def _is_late(state: Stopping, view: View, now_s: float) -> bool:
    """Whether to stop waiting for workers to park, because their node goes or they hang."""
    known, group, waited_s = state.known, state.group, now_s - state.since_s
    if view.leaves_in_s <= 0 and waited_s > grace_s(known, group, in_memory=state.in_memory):
        return True
    # A notice can be hours long, so a hang must not wait for its deadline.
    longest_s = max(_PARK_AT_LEAST_S, 10 * stop_s(known, group))
    return waited_s > longest_s and is_hung(group, known.history, now_s)


def _gives_up_first_step(state: Stopping, view: View, now_s: float) -> bool:
    """Whether a growth has waited too long for the group's first step, of which only a part is done.

    If the places for more workers are gone meanwhile, or were, starting the step again gains nothing.
    """
    known, group = state.known, state.group
    if group.num_steps or now_s <= state.gives_up_s:
        return False
    lasting = (change.world_size for change in known.history.capacity if change.time_s > state.since_s)
    usable = min(known.room(view, now_s), state.most, *lasting)
    return usable >= known.rules.workers.least and known.rules.useful(usable) > group.size


# -- failures


def forced_pause(group: Group, now_s: float) -> ForcedPause:
    """The pause after a group that ended without a commit."""
    return ForcedPause(
        from_size=group.size,
        in_vain_s=now_s - group.stepped_s,
        decided_s=now_s,
    )


def after_failure(
    known: ControllerContext, blamed: frozenset[str], reason: Event, now_s: float, mistake: Mistake | None = None
) -> ControllerContext:
    """A copy after workers failed and no lost node explains it.

    Raises:
        GaveUp: there were too many such failures, or another try would meet the same mistake of their code.
    """
    history, events = known.history.after_failure(blamed, reason, now_s, mistake)
    return replace(known, history=history).telling(*events)


def after_own_failure(
    known: ControllerContext,
    blamed: frozenset[str],
    reason: Event,
    now_s: float,
    mistake: Mistake | None,
    out_of_memory: Sequence[OutOfMemory],
) -> ControllerContext:
    """As `after_failure`. If workers ran out of memory and a cap is lowered for it, no node and no failure is counted.

    Raises:
        GaveUp: as `after_failure`, or a cap may not or cannot be lowered.
    """
    memory, told = known.memory, tuple[Event, ...]()
    for failure in out_of_memory:
        memory, more = memory.after(failure, known.rules.sizes, best_step=known.history.best_step)
        told += more
    known = replace(known, memory=memory)
    if not told:
        return after_failure(known, blamed, reason, now_s, mistake)
    return replace(known, history=known.history.after_lowered_cap()).telling(*told)


# -- what is told


def waits_for_room(known: ControllerContext, room: int) -> WaitsForRoom:
    """What a run without a group waits for. `room` is below `workers.min`."""
    workers = known.rules.workers
    return WaitsForRoom(room=min(room, workers.most), least=workers.least)


def finite(seconds: float) -> float | None:
    """The seconds, or None if they are infinite: an event can be stored as JSON, which has no infinity."""
    return seconds if math.isfinite(seconds) else None


def _telling_once(state: State, event: Event, room: int) -> tuple[State, Act]:
    """Do nothing, and tell the event unless one of its kind was told last, at the same room."""
    if state.known.told_once == (type(event), room):
        return state, Act()
    return replace(state, known=replace(state.known, told_once=(type(event), room))), Act(events=(event,))


def _telling_unused(state: Running, found: PlacesUnused | None) -> tuple[State, Act]:
    """Do nothing, and tell why places are unused if that is news.

    A group writes its events at its next step. If it ends before that, they are lost, so the next group tells again.
    """
    told = {**state.known.told, **state.group.told}
    if found is None or not is_news(found, told):
        return state, Act()
    group = replace(state.group, told={**state.group.told, key_of(found): found.places - found.size})
    return replace(state, group=group), Act(events=(found,))
