"""How long a stop takes, and whether it may stay in memory. As numbers and as text.

A durable stop waits for the step that runs, the commit in flight, and the last commit. A stop in memory waits for the
step that runs and its copy into memory. The next group then loads that copy (`hand_over_s`).
"""

from planner.base.text import about, duration
from planner.elastic.group import Group
from planner.elastic.states import ControllerContext
from planner.elastic.view import View

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


def stop_s(known: ControllerContext, group: Group) -> float:
    """Seconds to allow for a stop: to finish a step or an evaluation, and until that step is durable."""
    history = known.history
    commits = _COMMITS_IN_FLIGHT if group.is_committing else _COMMITS
    return 2 * history.step_s(group.size) + commits * history.commit_s(group.size) + 1.5 * history.eval_s


def hand_over_s(known: ControllerContext, group: Group) -> float:
    """Seconds to allow for a stop in memory, until the next group has loaded the copies and starts its first step."""
    history = known.history
    measured_s = history.copy_s(group.size) + history.hand_over_s if history.hand_over_pauses else _FIRST_HAND_OVER_S
    return 2 * history.step_s(group.size) + 1.5 * history.eval_s + _HAND_OVERS * measured_s


def obstacle(known: ControllerContext, group: Group, view: View, room: int) -> str:
    """Why a stop of the group now must be durable. Empty if its last step may stay in memory.

    After a hand-over from memory, the next stop is durable unless something became durable in between. The exception is
    a notice that is too short for a durable stop.

    Args:
        known: what the controller knows.
        group: the group to stop.
        view: the cluster now.
        room: how many workers there is room for without the nodes that go.
    """
    return cannot_hold(known, view, room) or _lacks_time(known, group, view.leaves_in_s)


def cannot_hold(known: ControllerContext, view: View, room: int) -> str:
    """Why no stop can stay in memory now, however long it takes. Empty if one can. `room` is that of `obstacle`."""
    if view.is_ending:
        return "the driver ends the run"
    if not view.can_hold:
        return "a node of the group has no keeper"
    return "no other group can start" if room < known.rules.workers.least else ""


def _lacks_time(known: ControllerContext, group: Group, left_s: float) -> str:
    """Why a stop must be durable, by the time until the first node goes. Empty if it may stay in memory."""
    durable_s, needed_s = stop_s(known, group), hand_over_s(known, group)
    if left_s < min(durable_s, needed_s):
        return "" if needed_s < durable_s else "a commit is quicker than a hand-over in memory"
    if left_s < needed_s:
        return "the notice is too short for a hand-over in memory"
    if left_s < durable_s or group.is_fresh:
        return ""
    return "nothing became durable since the group began"


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
    return 2 * history.step_s(group.size) + 1.5 * history.eval_s + _HAND_OVERS * history.copy_s(group.size)


def needed_text(known: ControllerContext, group: Group) -> str:
    """What a durable stop needs, beside a notice: `a step and a commit take 12 s`, or what was not measured yet."""
    history = known.history
    if not history.step_s(group.size):
        return "no step was measured yet"
    if not history.commit_s(group.size):
        return "no commit was measured yet"
    commits = f"a step, the commit of step {group.held_step} and another" if group.is_committing else "a step and a"
    return f"{commits} commit take {duration(stop_s(known, group))}"


def hand_over_text(known: ControllerContext, group: Group) -> str:
    """What happens in a stop in memory, and how long it takes until the next group starts its first step."""
    usual = f" ({duration(hand_over_s(known, group))} are allowed for that)" if known.history.hand_over_pauses else ""
    return f"all workers finish their step, then hand it over in memory{usual}"


def held_stop_text(known: ControllerContext, group: Group) -> str:
    """What a stop in memory waits for, and how long that usually takes."""
    copy_s = known.history.copy_s(group.size)
    took = f" (the last copy took {duration(known.history.copy.seconds)})" if copy_s else ""
    if group.is_last:
        return f"step {group.num_done} is done: waiting until it is copied into memory{took}"
    return f"all workers finish their step, then hand it over in memory{took}"


def stop_text_without_group(unsaved_step: int) -> str:
    """What a stop waits for while no worker trains. `unsaved_step` may be in memory alone. 0: none is."""
    if not unsaved_step:
        return "no worker trains now, and there is nothing to commit"
    what = f"step {unsaved_step} may be in memory alone"
    return f"no worker trains now, and {what}: if there is room, a group starts and commits it"


def stop_text(known: ControllerContext, group: Group, now_s: float) -> str:
    """What a durable stop waits for from now on, and how long that usually takes.

    `now_s` is on the controller's clock.
    """
    if group.is_last:
        return last_step_text(known, group, now_s) or f"step {group.num_done} is done and durable"
    still = ""
    if group.is_committing:
        # It may be durable by now: workers say so with the next step.
        still = f". When step {group.num_done} was done, step {group.held_step} was still being written"
    return f"all workers finish their step, then it becomes durable{_about(known, group, now_s)}{still}"


def last_step_text(known: ControllerContext, group: Group, now_s: float) -> str:
    """What a group waits for whose last step is done, and how long that usually takes. Empty if it is durable."""
    done = group.num_done
    if group.durable_step >= done:
        return ""
    is_end = done == known.history.total_steps
    head = f"all {done} steps are done" if is_end else f"step {done} is done"
    before = f" after step {group.held_step}" if group.is_committing and group.held_step < done else ""
    evaluated = ", and then evaluated" if is_end and known.rules.has_eval else ""
    return f"{head}: waiting until step {done} is durable{before}{evaluated}{_about(known, group, now_s)}"


def _about(known: ControllerContext, group: Group, now_s: float) -> str:
    """`: about 12 s (the last commit took 10 s)`. What has passed since the last report is subtracted."""
    history = known.history
    if not history.commit_s(group.size):
        return " (no commit was measured yet, so the time is not known)"
    last = f"the last commit took {duration(history.commit.seconds)}"
    if not (group.is_last or history.step_s(group.size)):
        return f" ({last}, and no step was measured yet)"
    left_s = _left_s(known, group, now_s)
    if left_s <= 0:
        return f": longer than usual, {duration(now_s - group.stepped_s)} so far ({last})"
    return f": {about(left_s)} ({last})"


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
