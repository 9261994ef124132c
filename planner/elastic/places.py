"""Places that a training group leaves unused, and why: `3 of 4 places used, because ...`.

A reason is told once per group size. It is told again only when twice as many places are unused as when it was told
last. So a cluster whose room changes every minute fills no ledger.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planner.base.text import counted, duration
from planner.elastic.group import ReasonKey
from planner.elastic.states import ControllerContext, Running
from planner.elastic.view import View
from planner.plan import Decision, ReasonKind


@dataclass(frozen=True, kw_only=True)
class UnusedPlaces:
    """Why a group does not use all places that there are."""

    size: int
    """workers of the group"""
    places: int
    """more than `size`"""
    reasons: Mapping[ReasonKind, str]

    @property
    def text(self) -> str:
        """The numbers and the reasons, for people."""
        return f"{self.size} of {counted(self.places, 'place')} used, because {', and '.join(self.reasons.values())}"

    @property
    def num_unused(self) -> int:
        """How many places are unused."""
        return self.places - self.size

    @property
    def key(self) -> ReasonKey:
        """What is remembered of it when it was told."""
        return self.size, frozenset(self.reasons)

    def is_news(self, told: Mapping[ReasonKey, int]) -> bool:
        """Whether to tell it. `told` has how many places were unused when a reason was told last.

        A hold is no news: the text about what made it says how many workers are used, and for how long.
        """
        return set(self.reasons) != {"hold"} and self.num_unused >= 2 * told.get(self.key, 0)


def unused_places(state: Running, view: View, decision: Decision, now_s: float) -> UnusedPlaces | None:
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
    usable, why, text = min(limits, key=lambda limit: limit[0], default=(places, decision.why, decision.reason))
    reasons = {why: text}
    if usable > size:
        reasons[decision.why] = decision.reason
    return UnusedPlaces(size=size, places=places, reasons=reasons)


def _limits(known: ControllerContext, view: View, now_s: float) -> Iterator[tuple[int, ReasonKind, str]]:
    """The limits on how many workers may be used: the number, and what to say of it. The lasting ones come first."""
    workers, hold = known.rules.workers, known.history.hold
    by_batch = workers.most == known.rules.sizes.global_batch
    batch = f"a global batch of {counted(workers.most, 'sample')} has work for no more workers"
    yield workers.most, *(("global_batch", batch) if by_batch else ("workers_max", f"workers.max is {workers.most}"))
    left_out = view.room.keys() - known.usable(view.room, now_s).keys()
    text = f"node {min(left_out, default='')} is" if len(left_out) == 1 else f"{len(left_out)} nodes are"
    yield sum(known.usable(view.room, now_s).values()), "bad_nodes", f"{text} left out"
    if now_s < hold.until_s:
        failed = f"a start with more than {counted(hold.world_size, 'worker')} failed"
        yield hold.world_size, "hold", f"{failed}, and planner tries more in {duration(hold.until_s - now_s)}"
