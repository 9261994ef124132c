"""How long a stop takes, whether it may stay in memory, and what it waits for.

A durable stop waits for the step that runs, the commit in flight, and the last commit. A stop in memory waits for the
step that runs and its copy into memory. The next group then loads that copy (`hand_over_s`).
"""

from planner.elastic.group import Group
from planner.elastic.states import ControllerContext
from planner.elastic.view import View
from planner.events.event import Event
from planner.events.outlook import AwaitsDurable, LastStepDurable, StopsDurably, StopsInMemory, StopTime
from planner.events.stopping import Obstacle, StopNeeds

# A machine often lives for some seconds after its deadline, also if the notice's deadline is now (AWS hibernation).
# Waiting in vain costs this much. Not waiting costs the steps since the last commit.
_GRACE_MOST_S = 10.0
_GRACE_LEAST_S = 2.0
# A commit may take longer than the last one did. A stop first waits for the commit in flight, which is partly written.
_COMMITS = 1.5
_COMMITS_IN_FLIGHT = 2.0
# A hand-over may take longer than those before it: the copies of another step, over a network in use.
_HAND_OVERS = 2.0
# Copy and pause of a launch's first hand-over. New processes start in about 7 s (`NEW_PROCESSES`). The rest is caution.
_FIRST_HAND_OVER_S = 10.0


def in_flight_s(known: ControllerContext, group: Group) -> float:
    """Seconds that the step in flight had taken at the last look, at most those of a step. 0 if none was measured."""
    return min(max(group.looked_s - group.stepped_s, 0.0), known.history.step_s(group.size))


def steps_s(known: ControllerContext, group: Group) -> float:
    """Seconds to allow for the rest of the step in flight and one more: workers may have begun it when they hear."""
    return 2 * known.history.step_s(group.size) - in_flight_s(known, group)


def stop_s(known: ControllerContext, group: Group) -> float:
    """Seconds to allow for a stop: to finish a step or an evaluation, and until that step is durable."""
    history = known.history
    commits = _COMMITS_IN_FLIGHT if group.is_committing else _COMMITS
    return steps_s(known, group) + commits * history.commit_s(group.size) + 1.5 * history.eval_s


def hand_over_s(known: ControllerContext, group: Group) -> float:
    """Seconds to allow for a stop in memory, until the next group has loaded the copies and starts its first step."""
    history = known.history
    measured_s = history.copy_s(group.size) + history.hand_over_s if history.hand_over_pauses else _FIRST_HAND_OVER_S
    return steps_s(known, group) + 1.5 * history.eval_s + _HAND_OVERS * measured_s


def obstacle(known: ControllerContext, group: Group, view: View, room: int) -> Obstacle | None:
    """Why a stop of the group now must be durable. None if its last step may stay in memory.

    After a hand-over from memory, the next stop is durable unless something became durable in between. The exception is
    a notice that is too short for a durable stop.

    Args:
        known: what the controller knows.
        group: the group to stop.
        view: the cluster now.
        room: how many workers there is room for without the nodes that go.
    """
    return cannot_hold(known, view, room) or _lacks_time(known, group, view.leaves_in_s)


def cannot_hold(known: ControllerContext, view: View, room: int) -> Obstacle | None:
    """Why no stop can stay in memory now, however long it takes. None if one can. `room` is that of `obstacle`."""
    if view.is_ending:
        return "driver_ends"
    if not view.can_hold:
        return "no_keeper"
    return "no_other_group" if room < known.rules.workers.least else None


def _lacks_time(known: ControllerContext, group: Group, left_s: float) -> Obstacle | None:
    """Why a stop must be durable, by the time until the first node goes. None if it may stay in memory."""
    durable_s, needed_s = stop_s(known, group), hand_over_s(known, group)
    if left_s < min(durable_s, needed_s):
        return None if needed_s < durable_s else "commit_is_quicker"
    if left_s < needed_s:
        return "notice_too_short"
    if left_s < durable_s or group.is_fresh:
        return None
    return "nothing_durable"


def leave_s(known: ControllerContext, group: Group, view: View, room: int) -> float:
    """Seconds to allow for a stop of the group now, in memory or durable as `obstacle` says."""
    is_durable = obstacle(known, group, view, room)
    return stop_s(known, group) if is_durable else hand_over_s(known, group)


def grace_s(known: ControllerContext, group: Group, *, in_memory: bool = False) -> float:
    """Seconds to wait for workers to park although the deadline has passed. 0 if it is likely to take too long."""
    history = known.history
    is_eval_known = history.eval_s or not known.rules.has_eval
    last_s = history.copy_s(group.size) if in_memory else history.measured_commit_s(group.size)
    if not (history.step_s(group.size) and last_s and is_eval_known):
        return _GRACE_MOST_S
    needed_s = _park_in_memory_s(known, group) if in_memory else stop_s(known, group)
    if needed_s > _GRACE_MOST_S:
        return 0.0
    return min(max(_GRACE_LEAST_S, 2 * needed_s), _GRACE_MOST_S)


def _park_in_memory_s(known: ControllerContext, group: Group) -> float:
    """Seconds to allow until the last step is in memory and all workers have parked."""
    history = known.history
    return steps_s(known, group) + 1.5 * history.eval_s + _HAND_OVERS * history.copy_s(group.size)


def stop_needs(known: ControllerContext, group: Group) -> StopNeeds:
    """What a durable stop needs, beside a notice."""
    history = known.history
    is_step_known, is_commit_known = history.step_s(group.size) > 0, history.commit_s(group.size) > 0
    return StopNeeds(
        stop_s=stop_s(known, group),
        lacks=("commit" if not is_commit_known else None) if is_step_known else "step",
        held_step=group.held_step if group.is_committing else None,
    )


def held_stop(known: ControllerContext, group: Group) -> StopsInMemory:
    """What a stop in memory waits for, and how long that usually takes."""
    copy_s = known.history.copy.seconds
    return StopsInMemory(done_step=group.num_done if group.is_last else None, copy_s=copy_s or None)


def durable_stop(known: ControllerContext, group: Group, now_s: float) -> Event:
    """What a durable stop waits for from now on, and how long that usually takes.

    `now_s` is on the controller's clock.
    """
    if group.is_last:
        return last_step(known, group, now_s) or LastStepDurable(step=group.num_done)
    return StopsDurably(
        time=_stop_time(known, group, now_s),
        done_step=group.num_done,
        held_step=group.held_step if group.is_committing else None,
    )


def last_step(known: ControllerContext, group: Group, now_s: float) -> AwaitsDurable | None:
    """What a group waits for whose last step is done, and how long that usually takes. None if it is durable."""
    done = group.num_done
    if group.durable_step >= done:
        return None
    is_end = done == known.history.total_steps
    return AwaitsDurable(
        time=_stop_time(known, group, now_s),
        step=done,
        is_end=is_end,
        after_step=group.held_step if group.is_committing and group.held_step < done else None,
        is_evaluated=is_end and known.rules.has_eval,
    )


def _stop_time(known: ControllerContext, group: Group, now_s: float) -> StopTime:
    """How long a durable stop takes. What has passed since the last report is subtracted."""
    history = known.history
    commit_s = history.commit.seconds or None
    is_step_known = group.is_last or history.step_s(group.size) > 0
    left_s = _left_s(known, group, now_s) if commit_s and is_step_known else None
    return StopTime(commit_s=commit_s, left_s=left_s, passed_s=now_s - group.stepped_s)


def _left_s(known: ControllerContext, group: Group, now_s: float) -> float:
    """Seconds until the step that runs, or the last one, is durable. Negative if that takes longer than expected."""
    history, commit_s, passed_s = known.history, known.history.commit_s(group.size), now_s - group.stepped_s
    is_before = group.is_committing and not (group.is_last and group.held_step == group.num_done)
    # The commit in flight goes on beside the step. The next one begins when both are done.
    flight_s = max(commit_s - (group.stepped_s - group.held_since_s), 0.0) if is_before else 0.0
    if not group.is_last:
        return max(history.step_s(group.size) - passed_s, flight_s - passed_s, 0.0) + commit_s
    eval_s = history.eval_s if group.num_done == history.total_steps else 0.0
    return flight_s + commit_s + eval_s - passed_s
