"""Whether a resize pays, and how long newcomers may take."""

from planner.elastic.group import Group
from planner.elastic.states import ControllerContext, Running, Warming
from planner.events.sizing import UsesEveryNode
from planner.plan import make_plan
from planner.plan.forced_restarts import NONE_FORCED
from planner.plan.revise import Decision, Situation, revise
from planner.plan.speed import Speeds

# Newcomers that are not ready by then are called off. The next ones get twice as long: some machines first have to
# tokenize a data set, and on others another process holds the place.
_WARM_AT_LEAST_S = 60.0
_WARM_MOST_S = 3600.0
# Newcomers wait at least this long for a commit that lets the stop stay in memory.
_COMMIT_WAIT_LEAST_S = 30.0
# A start may take so many times as long as the launch's first one.
_STARTS = 1.5


def decide(state: Running, room: int, now_s: float) -> Decision:
    """Whether to resize now, by `planner.plan.revise` or by the eager rule."""
    rules, size = state.known.rules, state.group.size
    target = min(room, rules.workers.most)
    if rules.eager and target != size:
        reason = UsesEveryNode(size=size, to=target)
        return Decision(kind="resize", world_size=target, until_s=now_s, reason=reason)
    return revise(_situation(state.known, state.group, now_s))


def _situation(known: ControllerContext, group: Group, now_s: float) -> Situation:
    rules, history, size = known.rules, known.history, group.size
    return Situation(
        plan=make_plan(known.sizes_at(size), size),
        capacity=history.capacity,
        speeds=_speeds(known, size),
        cost=history.cost,
        remaining_steps=max(history.total_steps - history.step, 0),
        workers_min=rules.workers.least,
        workers_max=max(history.held(rules.workers.most, now_s), size),
        now_s=now_s,
        forced=history.forced or NONE_FORCED,
        group_started_s=group.started_s,
    )


def _speeds(known: ControllerContext, size: int) -> Speeds:
    speeds = known.history.speeds
    if not known.rules.on_one_machine:
        return speeds
    present = {w: seconds for w, seconds in speeds.measured.items() if w == size}
    return Speeds(measured=present, plans=speeds.plans, has_own_caps=True, on_one_machine=True)


def longest_warming_s(known: ControllerContext) -> float:
    """Seconds after which newcomers that are not ready are called off."""
    history = known.history
    # Before newcomers were ready once, a start of this job says most about them.
    usual_s = max(_WARM_AT_LEAST_S, 3 * history.cost.lead_s, 0.0 if history.lead_times else _STARTS * history.start_s)
    return min(usual_s * 2.0**known.history.num_late_newcomers, _WARM_MOST_S)


def usual_warming_s(known: ControllerContext) -> float:
    """Seconds in which newcomers are expected to be ready: before that was measured, those of a start of this job."""
    history = known.history
    return history.cost.lead_s if history.lead_times else max(history.cost.lead_s, history.start_s)


def longest_commit_wait_s(known: ControllerContext, group: Group) -> float:
    """Seconds after which newcomers no longer wait for a commit."""
    return max(_COMMIT_WAIT_LEAST_S, 3 * known.history.commit_s(group.size))


def most_after(state: Warming) -> int:
    """The largest world size of the group after newcomers.

    A worker that was not warmed up keeps all others waiting while it starts. Where that takes less than one more pause,
    nodes that came meanwhile join at once.
    """
    cost, most = state.known.history.cost, state.known.rules.workers.most
    return most if cost.lead_s < cost.grow_s else state.world_size


def ski_rental_s(state: Warming) -> float:
    """When newcomers that are ready have waited as long as the group had run before, on the controller's clock.

    Waiting so long for a group's first step at most doubles the loss if it is given up then (ski rental).
    """
    return state.ready_s + max(state.ready_s - state.group.started_s, state.known.history.cost.grow_s)


def first_step_due_s(state: Warming) -> float:
    """Until when newcomers that are ready let the group do its first step: without it, its start would be in vain.

    They do not wait if they would do that step sooner, though they have to start from its begin.
    """
    history, size, started_s = state.known.history, state.group.size, state.group.started_s
    gain_s = history.step_s(size) - history.step_s(state.world_size)
    if state.ready_s - started_s < gain_s:
        return state.ready_s
    return max(ski_rental_s(state), started_s + _STARTS * (history.start_s + history.step_s(size)))
