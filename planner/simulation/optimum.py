"""Two bounds that know the whole trace. No policy can be as good, because none knows what comes."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from planner.simulation.lives import Lives
from planner.simulation.outcome import Change, Outcome
from planner.simulation.world import Costs, Speed, ideal_steps

# A smaller part of the trace is the rounding of sums, which may be below 0.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class _Segment:
    """A group from its start to its end."""

    start_s: float
    end_s: float
    nodes: int
    useful_s: float
    paused_s: float
    redone_s: float = 0.0
    commit_s: float = 0.0


class _Best:
    """The best way to each moment: dynamic programming over the moments at which nodes come or go."""

    def __init__(self, moments: Sequence[float]) -> None:
        self.moments = moments
        self.steps = [0.0] + [-1.0] * (len(moments) - 1)
        self._last: list[tuple[int, _Segment | None] | None] = [None] * len(moments)

    def reach(self, start: int, end: int, steps: float, segment: _Segment | None) -> None:
        """Take a way from one moment to another, if it is the best one so far."""
        if self.steps[start] + steps > self.steps[end]:
            self.steps[end] = self.steps[start] + steps
            self._last[end] = (start, segment)

    @property
    def segments(self) -> list[_Segment]:
        """The groups of the best way, in order."""
        found, at = [], len(self.moments) - 1
        while (last := self._last[at]) is not None:
            at, segment = last
            found += [segment] if segment is not None else []
        return found[::-1]


def optimum(lives: Lives, speed: Speed, costs: Costs) -> Outcome:
    """The best run of one that knows the trace, survivors included: its groups lose no node.

    Each group pays one start, and one commit at its end.
    """
    moments = [0.0, *(time_s for time_s, _ in lives.counts if 0 < time_s < lives.end_s), lives.end_s]
    best, alive, at = _Best(moments), dict[str, float](), 0
    for i, start_s in enumerate(moments[:-1]):
        while at < len(lives.moments) and lives.moments[at].time_s <= start_s:
            moment, at = lives.moments[at], at + 1
            if moment.kind == "arrives":
                alive[moment.life.node] = moment.life.leaves_s
            elif moment.kind == "leaves":
                del alive[moment.life.node]
        ends = sorted(alive.values(), reverse=True)
        nodes = len(ends)
        for j in range(i + 1, len(moments)):
            end_s = moments[j]
            while nodes and ends[nodes - 1] < end_s:
                nodes -= 1
            save_s = 0.0 if end_s == lives.end_s else costs.save_s
            work_s = end_s - start_s - costs.restart_s - save_s
            rate = speed.best(nodes)
            if work_s > 0 and rate > 0:
                segment = _Segment(
                    start_s=start_s,
                    end_s=end_s,
                    nodes=nodes,
                    useful_s=work_s,
                    paused_s=costs.restart_s,
                    commit_s=save_s,
                )
                best.reach(i, j, work_s * rate, segment)
            else:
                best.reach(i, j, 0.0, None)
            if rate <= 0:
                break
    return _outcome("optimum", best, lives, speed, costs, losses=0)


def fair_optimum(lives: Lives, speed: Speed, costs: Costs) -> Outcome:
    """The best run of one that knows all times, but not which node goes: every loss ends its group.

    It is free to choose when to grow, and when to start again after a loss. It pays for commits at the best interval,
    for half of one at each loss without notice, and for one commit at every other end. It is approximate: a
    policy may be better by a point where nodes give notice, and by several where nodes flap that no group needs.
    """
    losses: dict[float, bool] = {}  # time -> whether one of its losses had no notice
    for life in lives.lives:
        if life.leaves_s < math.inf:
            losses[life.leaves_s] = losses.get(life.leaves_s, False) or not life.has_notice
    num_bare = sum(losses.values())
    interval_s = max(math.sqrt(2 * costs.save_s * lives.end_s / (num_bare + 1)), 3 * costs.save_s)
    tax = costs.save_s / (interval_s + costs.save_s) if num_bare and costs.save_s else 0.0
    times = [time_s for time_s, _ in lives.counts]
    moments = sorted({0.0, lives.end_s, *(time_s for time_s in [*times, *losses] if time_s < lives.end_s)})
    best = _Best(moments)
    for i, start_s in enumerate(moments[:-1]):
        at = bisect_right(times, start_s) - 1
        nodes = lives.counts[at][1] if at >= 0 else 0
        pause_s = costs.restart_s + (costs.detect_s if losses.get(start_s) else 0.0)
        for j in range(i + 1, len(moments)):
            end_s = moments[j]
            is_loss, is_bare = end_s in losses, losses.get(end_s, False)
            save_s = 0.0 if is_bare or end_s == lives.end_s else costs.save_s
            left_s = end_s - start_s - pause_s - save_s
            work_s = left_s * (1 - tax)
            redone_s = min(interval_s / 2, work_s / 2) if is_bare and work_s > 0 else 0.0
            useful_s = max(work_s - redone_s, 0.0)
            segment = _Segment(
                start_s=start_s,
                end_s=end_s,
                nodes=nodes,
                useful_s=useful_s,
                paused_s=pause_s,
                redone_s=redone_s,
                commit_s=save_s + left_s * tax,
            )
            best.reach(i, j, useful_s * speed.best(nodes), segment if useful_s and speed.best(nodes) else None)
            if is_loss:
                break
    return _outcome("fair", best, lives, speed, costs, losses=num_bare)


def _outcome(policy: str, best: _Best, lives: Lives, speed: Speed, costs: Costs, *, losses: int) -> Outcome:
    """The result of the best way. Time without a group is idle. Commits follow from their seconds."""
    segments = best.segments
    useful_s = sum(segment.useful_s for segment in segments)
    paused_s = sum(segment.paused_s for segment in segments)
    redone_s = sum(segment.redone_s for segment in segments)
    commit_s = sum(segment.commit_s for segment in segments)
    idle_s = lives.end_s - useful_s - paused_s - redone_s - commit_s
    return Outcome(
        policy=policy,
        steps=best.steps[-1],
        ideal_steps=ideal_steps(lives, speed),
        useful_s=useful_s,
        paused_s=paused_s,
        redone_s=redone_s,
        idle_s=idle_s if idle_s > _ROUNDING * lives.end_s else 0.0,
        commit_s=commit_s,
        resizes=len(segments),
        commits=round(commit_s / costs.save_s) if costs.save_s else 0,
        losses=losses,
        changes=tuple(_changes(segments, lives, speed)),
    )


def _changes(segments: Sequence[_Segment], lives: Lives, speed: Speed) -> list[Change]:
    """The starts of the groups, and the ends of those that no other group follows at once."""
    found: list[Change] = []
    next_starts = [*(segment.start_s for segment in segments[1:]), lives.end_s]
    for segment, next_s in zip(segments, next_starts, strict=False):
        workers, nodes = speed.places(segment.nodes), _nodes_at(lives, segment.start_s)
        found.append(Change(time_s=segment.start_s, nodes=nodes, workers=workers, what="starts"))
        if segment.end_s < next_s:
            left = _nodes_at(lives, segment.end_s)
            found.append(Change(time_s=segment.end_s, nodes=left, workers=0, what="stops"))
    return found


def _nodes_at(lives: Lives, time_s: float) -> int:
    at = bisect_right([each_s for each_s, _ in lives.counts], time_s) - 1
    return lives.counts[at][1] if at >= 0 else 0
