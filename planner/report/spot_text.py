"""What a run kept of the work that its nodes could do, beside what others would have kept: one line of it."""

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import TYPE_CHECKING

from planner.errors import PlanError
from planner.events.capacity import Capacity
from planner.events.failures import NodesLost
from planner.job import Job, workers_of
from planner.provenance.run_times import RunClock
from planner.store.records import EventRecord
from planner.store.survey import Survey
from planner.story.capacity import CapacityFold, RunCapacity

if TYPE_CHECKING:
    from planner.simulation.replay import Replay

# A simulated commit takes some 10 us, and the optimum a microsecond for each two changes.
_MOST_COMMITS, _MOST_CHANGES = 2000, 150
# More than all: by its own ledger, the run's groups had more workers than its nodes hold. A few percent are rounding.
_MOST_KEPT = 1.05


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Steps that count, as parts of those of a run that uses each node while it is there, and never pauses."""

    kept: float
    """of this run"""
    stock: float | None
    """of Ray Train's policy at its defaults, simulated. None if that would take too long here"""
    optimum: float | None
    """of one that knows everything, likewise"""


def spot_of_survey(survey: Survey) -> Spot | None:
    """By the ends of the newest segments. None if the nodes did not change."""
    records = [record for segment in survey.segments for record in segment.records]
    sizes = {segment.header.world_size for segment in survey.segments if segment.header}
    has_news = any(isinstance(each, EventRecord) and each.event in (Capacity.name, NodesLost.name) for each in records)
    if survey.job is None or (len(sizes) < 2 and not has_news):
        return None
    fold, clock = CapacityFold(), RunClock()
    for record in records:
        clock.add(record)
        fold.add(record, clock)
    return spot_of(fold.capacity(clock), survey.job)


def spot_of(capacity: RunCapacity, job: Job | None) -> Spot | None:
    """By what the ledger says of the nodes.

    None if they did not change, if nothing says what a start takes, or if the ledger says too little or what cannot be.
    """
    if job is None or not capacity.is_timed:
        return None
    from planner.simulation.replay import replay_of  # most runs have no such line

    try:
        replay = replay_of(capacity, workers_of(job))
        return None if replay is None else _spot(replay)
    except (PlanError, ValueError, OverflowError):
        return None  # the line is only shown: a damaged ledger has its errors elsewhere


def _spot(replay: "Replay") -> Spot | None:
    lives = replay.lives
    if len(lives.counts) < 2 or not isfinite(lives.end_s) or not replay.own.ideal_steps:
        return None
    if replay.measured.restart_s is None:
        return None  # the figures of a short run would be those of the start that is assumed
    if replay.own.useful_over_ideal > _MOST_KEPT:
        return None
    is_short = replay.trace.changes <= _MOST_CHANGES
    is_quick = is_short and _commits(replay) <= _MOST_COMMITS
    return Spot(
        kept=min(replay.own.useful_over_ideal, 1.0),
        stock=replay.play("stock").useful_over_ideal if is_quick else None,
        optimum=replay.play("optimum").useful_over_ideal if is_short else None,
    )


def _commits(replay: "Replay") -> float:
    """About how often a simulated run commits: at the interval sqrt(2 * commit * time between losses)."""
    losses = sum(life.leaves_s <= replay.trace.end_s for life in replay.lives.lives)
    interval_s = sqrt(2 * replay.costs.save_s * replay.trace.end_s / (losses + 1))
    return replay.trace.end_s / max(interval_s, min(replay.speed.steps_s[1:]))


def spot_text(spot: Spot, run: str, within: str = "") -> str:
    """One line. `within` names the part of the run that it is about. Empty: all of it."""
    simulated = (
        f"stock Ray Train would have kept about {spot.stock:.0%}" if spot.stock is not None else "",
        f"the best possible is about {spot.optimum:.0%}" if spot.optimum is not None else "",
    )
    others = ", ".join(filter(None, simulated))
    return (
        f"kept {spot.kept:.0%} of the steps that its nodes could have done{within}{f': {others}' if others else ''} "
        f"(planner simulate --replay {run})"
    )
