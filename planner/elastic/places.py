"""Places that a training group leaves unused, and why.

A reason is told once per group size. It is told again only when twice as many places are unused as when it was told
last. So a cluster whose room changes every minute fills no ledger.
"""

from collections.abc import Iterator, Mapping

from planner.elastic.group import ReasonKey
from planner.elastic.states import ControllerContext, Running
from planner.elastic.view import View
from planner.events.event import Event
from planner.events.sizing import GlobalBatchUsedUp, NodesLeftOut, OnHold, PlacesUnused, WorkersMax
from planner.plan.revise import Decision


def key_of(found: PlacesUnused) -> ReasonKey:
    """What is remembered of it when it was told. The reasons' numbers change with time, so they do not count."""
    return found.size, frozenset(type(reason) for reason in found.reasons)


def is_news(found: PlacesUnused, told: Mapping[ReasonKey, int]) -> bool:
    """Whether to tell it. `told` has how many places were unused when a reason was told last.

    A hold is no news: the event that made it says how many workers are used, and for how long.
    """
    size, kinds = key_of(found)
    return kinds != {OnHold} and found.places - size >= 2 * told.get((size, kinds), 0)


def unused_places(state: Running, view: View, decision: Decision, now_s: float) -> PlacesUnused | None:
    """Why the group leaves places unused. None if it uses all, or in a rehearsal, which decides by itself.

    Args:
        state: the group, which is kept by `decision`.
        view: the cluster.
        decision: to keep the group or to wait, made for the room in `view`.
        now_s: the time on the controller's clock.
    """
    known, size, places = state.known, state.group.size, sum(view.room.values())
    if known.rules.eager or places <= size:
        return None
    limits = [limit for limit in _limits(known, view, now_s) if limit[0] < places]
    usable, reason = min(limits, key=lambda limit: limit[0], default=(places, decision.reason))
    reasons = dict.fromkeys((reason, decision.reason) if usable > size else (reason,))
    return PlacesUnused(size=size, places=places, reasons=tuple(reasons))


def _limits(known: ControllerContext, view: View, now_s: float) -> Iterator[tuple[int, Event]]:
    """The limits on how many workers may be used, and what sets them. The lasting ones come first."""
    workers, hold = known.rules.workers, known.history.hold
    by_batch = workers.most == known.rules.sizes.global_batch
    yield workers.most, GlobalBatchUsedUp(samples=workers.most) if by_batch else WorkersMax(most=workers.most)
    usable = known.usable(view.room, now_s)
    yield sum(usable.values()), NodesLeftOut(nodes=tuple(sorted(view.room.keys() - usable.keys())))
    if now_s < hold.until_s:
        yield hold.world_size, OnHold(most=hold.world_size, left_s=hold.until_s - now_s)
