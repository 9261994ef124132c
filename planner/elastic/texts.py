"""Texts for the ledger and the terminal about decisions of the controller."""

from planner.base.text import counted, duration
from planner.elastic.states import ControllerContext, Running, Warming
from planner.elastic.stopping import grace_s, hand_over_text, needed_text, obstacle, stop_s
from planner.elastic.view import View


def waiting_text(known: ControllerContext, room: int) -> str:
    """What a run without a group waits for. `room` is below `workers.min`."""
    workers = known.rules.workers
    return f"waiting: room for {min(room, workers.most)}, but workers.min is {workers.least}"


def newest(*, in_memory: bool) -> str:
    """What the next group starts from, after one that failed or was given up. `in_memory`: there may be copies."""
    return "the newest copy in memory or the last commit" if in_memory else "the last commit"


def notice_texts(state: Running | Warming, view: View, room: int) -> tuple[str, ...]:
    """The note about a notice, and a second one if the notice may be too short for a commit.

    If the run cannot continue on other nodes, the second one also says that the time suffices.
    """
    known, group, deadline_s = state.known, state.group, view.leaves_in_s
    gone = sum(node in view.leaving for node in view.nodes)
    note = f"resize: notice for {counted(gone, 'worker')} of {group.size}, {duration(deadline_s)} left, room for {room}"
    reason = obstacle(known, group, view, room)
    if not reason:
        return note, hand_over_text(known, group)
    if view.can_hold:
        note = f"{note}. The last step becomes durable, and does not stay in memory: {reason}"
    needed, needed_s, patience_s = needed_text(known, group), stop_s(known, group), grace_s(known, group)
    if needed_s <= deadline_s:
        is_known = known.history.step_s(group.size) and known.history.commit_s(group.size)
        enough = f"{needed}: the notice is long enough to keep all steps" if is_known else needed
        return (note,) if room >= known.rules.workers.least else (note, enough)
    if deadline_s < patience_s:
        return note, f"{needed}: planner still tries a commit for {duration(patience_s)}"
    return note, f"{needed}: the notice is too short to keep all steps"
