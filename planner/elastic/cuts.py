"""When a stop abandons the step in flight: the next group then does it, and its rows, from the begin.

Workers agree on it between two rounds, so a step of one round is always finished, and so is one that is nearly done.
"""

from planner.elastic.group import Group
from planner.elastic.states import ControllerContext
from planner.elastic.stopping import in_flight_s, leave_s, steps_s
from planner.elastic.view import View
from planner.events.stopping import CutsStep
from planner.plan import make_plan

# Workers look about once a second whether they should stop, and agree on it a round later.
_LEAST_REST_S = 2.0


def growth_cut(known: ControllerContext, group: Group, to: int) -> CutsStep | None:
    """The cut before a growth to `to` workers. None if the group finishes its step sooner than they could do it all.

    That is the case unless `elapsed < r * rest`, with r the gain in speed: the whole step takes `(elapsed + rest) /
    (1 + r)` there, and its rest takes `rest` here.
    """
    done_s, rest_s = _parts(known, group)
    to_step_s = known.history.step_s(to)
    if rest_s < _LEAST_REST_S or not _has_rounds(known, group) or to_step_s >= rest_s:
        return None
    return CutsStep(elapsed_s=done_s, rest_s=rest_s, to=to, to_step_s=to_step_s, left_s=None)


def notice_cut(known: ControllerContext, group: Group, view: View, room: int) -> CutsStep | None:
    """The cut before nodes go. None if the step can be finished and saved by then, or cannot be saved anyway."""
    done_s, rest_s = _parts(known, group)
    if rest_s < _LEAST_REST_S or not _has_rounds(known, group):
        return None
    save_s = leave_s(known, group, view, room) - steps_s(known, group)
    if not save_s < view.leaves_in_s < rest_s + save_s:
        return None
    return CutsStep(elapsed_s=done_s, rest_s=rest_s, to=None, to_step_s=None, left_s=view.leaves_in_s)


def _parts(known: ControllerContext, group: Group) -> tuple[float, float]:
    """Seconds of the step in flight so far, and left. Both are 0 before a step was measured."""
    done_s = in_flight_s(known, group)
    return done_s, known.history.step_s(group.size) - done_s


def _has_rounds(known: ControllerContext, group: Group) -> bool:
    return make_plan(known.sizes_at(group.size), group.size).accumulation_steps > 1
