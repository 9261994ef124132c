"""A run's own ledger as a trace: the nodes it had, what its steps and changes took, and what it made of them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from statistics import median

from planner.plan import BatchSizes, WorkerRange, make_plan
from planner.plan.speed import Speeds
from planner.simulation.lives import Lives, lives_of
from planner.simulation.outcome import Change, Outcome
from planner.simulation.play import play
from planner.simulation.replay_nodes import leads_of, nodes_of, trace_of
from planner.simulation.trace import Trace
from planner.simulation.world import Costs, Speed, ideal_steps
from planner.story.capacity import GroupSpan, RunCapacity

COLD = ("stock", "fixed")
"""policies that end all processes at a change, and start others"""
_DEFAULT = Costs()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What changes cost the run, in seconds. None: it has not measured that."""

    restart_s: float | None = None
    save_s: float | None = None
    lead_s: float | None = None
    detect_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A run, ready to be played."""

    trace: Trace
    """the time between two launches is left out"""
    lives: Lives
    speed: Speed
    measured: Measured
    costs: Costs
    """as measured, and as assumed where nothing was"""
    own: Outcome
    """of the run itself"""
    is_exact: bool
    """whether the nodes are on record. Else they follow from the groups, and each worker is a node"""
    is_even: bool
    """whether all nodes hold equally many workers. Else the trace has their mean"""
    sizes: tuple[int, ...]
    """worker counts whose steps were measured, ascending"""

    @property
    def cold_s(self) -> float:
        """For how long a start pauses training if no processes start beside the group."""
        return self.costs.restart_s + self.costs.lead_s

    def play(self, policy: str) -> Outcome:
        """What a policy makes of the trace.

        Raises:
            GaveUp: the controller gave up.
        """
        costs = replace(self.costs, restart_s=self.cold_s) if policy in COLD else self.costs
        return play(policy, self.lives, self.speed, costs)


def replay_of(capacity: RunCapacity, workers: WorkerRange, given: Mapping[str, float] | None = None) -> Replay | None:
    """The replay of a run. None if no typical step of it is on record.

    Args:
        capacity: what its ledger says.
        workers: how many it may have.
        given: fields of `Costs` that are not to be those that were measured.
    """
    groups = capacity.groups
    times = {size: seconds for size, seconds in _step_times(groups).items() if 0 < seconds < math.inf}
    if not times:
        return None
    measured = _measured(capacity, times)
    known = {name: value for name, value in vars(measured).items() if value is not None}
    costs = replace(_DEFAULT, **{**known, **(given or {})})
    # The run's own launches take what a start takes the policies, also if that is assumed.
    clock = _Clock(groups, costs.restart_s if measured.restart_s is None else measured.restart_s)
    found = nodes_of(groups, clock)
    trace = trace_of(found.events, clock.end_s)
    lives = lives_of(trace)
    speed = Speed(
        sizes=groups[-1].sizes,
        workers=workers,
        node_workers=found.workers,
        seconds=_seconds(groups, times, capacity.eval_s),
        peak=lives.peak,
    )
    return Replay(
        trace=trace,
        lives=lives,
        speed=speed,
        measured=measured,
        costs=costs,
        own=_own(capacity, clock, lives, speed),
        is_exact=found.is_exact,
        is_even=found.is_even,
        sizes=tuple(sorted(times)),
    )


# -- seconds


def _step_times(groups: Sequence[GroupSpan]) -> dict[int, float]:
    """World size -> mean seconds of a step, without the first one of each group.

    A mean and not a median, because slow steps took time too. Groups with another batch than the last one do not count.
    """
    sums: dict[int, list[float]] = {}
    for group in groups:
        if group.sizes.apart_from_caps == groups[-1].sizes.apart_from_caps and group.step_s:
            found = sums.setdefault(group.workers, [0.0, 0])
            found[0], found[1] = found[0] + group.step_s * (group.num_steps - 1), found[1] + group.num_steps - 1
    return {size: total_s / number for size, (total_s, number) in sums.items()}


def _seconds(groups: Sequence[GroupSpan], times: Mapping[int, float], eval_s: float) -> Callable[[int], float]:
    """World size -> seconds of a step, with its share of the evaluations: as measured, else by the step model."""
    sizes = {group.workers: group.sizes for group in groups if group.workers in times}
    plans = {size: make_plan(sizes[size], size) for size in times}
    speeds = Speeds(measured=times, plans=plans, has_own_caps=len(set(sizes.values())) > 1)
    num_steps = sum(group.num_steps for group in groups)
    of: BatchSizes = groups[-1].sizes
    return lambda size: speeds.seconds_per_step(make_plan(of, size)) + eval_s / num_steps


def _measured(capacity: RunCapacity, times: Mapping[int, float]) -> Measured:
    """What changes of this run cost, as medians."""
    pairs = [(old, new) for old, new in pairwise(capacity.groups) if old.launch_id == new.launch_id]
    planned = [_pause_s(old, new, times) for old, new in pairs if not new.after_loss and old.workers != new.workers]
    lost = [_pause_s(old, new, times) for old, new in pairs if new.after_loss]
    restart_s = median(planned or lost) if planned or lost else None
    leads = [lead for old, new in pairs if new.workers > old.workers for lead in leads_of(old)]
    return Measured(
        restart_s=restart_s,
        save_s=median(capacity.commits) if capacity.commits else None,
        lead_s=median(leads) if leads else None,
        # Without planned changes, the pause after a loss is not divided.
        detect_s=max(median(lost) - (restart_s or 0.0), 0.0) if lost else None,
    )


def _pause_s(old: GroupSpan, new: GroupSpan, times: Mapping[int, float]) -> float:
    """From the end of a group until the next one is as fast as usual, without waits for room."""
    slow_s = max(new.first_step_s - times.get(new.workers, new.first_step_s), 0.0)
    return max(new.start_s - old.end_s - new.waited_s, 0.0) + slow_s


# -- time


class _Clock:
    """Seconds since the epoch -> seconds of the trace. Each launch begins a usual pause before its first step."""

    def __init__(self, groups: Sequence[GroupSpan], pause_s: float) -> None:
        self._spans: dict[str, tuple[float, float, float]] = {}
        self.end_s = 0.0
        for launch_id, found in groupby(groups, key=lambda group: group.launch_id):
            launch = list(found)
            start_s, end_s = launch[0].start_s - pause_s, max(group.end_s for group in launch)
            self._spans[launch_id] = (start_s, end_s, self.end_s)
            self.end_s += max(end_s - start_s, 0.0)

    def __call__(self, launch_id: str, time_s: float) -> float:
        """A time of a launch. Times before its begin or after its end become these."""
        start_s, end_s, offset_s = self._spans[launch_id]
        return offset_s + min(max(time_s - start_s, 0.0), max(end_s - start_s, 0.0))


# -- what the run made of it


def _own(capacity: RunCapacity, clock: _Clock, lives: Lives, speed: Speed) -> Outcome:
    """The run as an outcome."""
    groups, times = capacity.groups, capacity.times
    pairs = [(old, new) for old, new in pairwise(groups) if old.launch_id == new.launch_id]
    idle_s = sum(min(new.waited_s, max(new.start_s - old.end_s, 0.0)) for old, new in pairs)
    trained_s = sum(max(group.end_s - group.start_s, 0.0) for group in groups)
    redone_s = min(times.lost_s, trained_s)
    commit_s = min(times.committing_s, trained_s - redone_s)
    return Outcome(
        policy="run",
        steps=float(max(groups[-1].end_step - groups[0].first_step, 0)),
        ideal_steps=ideal_steps(lives, speed),
        useful_s=trained_s - redone_s - commit_s,
        paused_s=max(clock.end_s - trained_s - idle_s, 0.0),
        redone_s=redone_s,
        idle_s=idle_s,
        commit_s=commit_s,
        resizes=len(groups),
        commits=capacity.num_commits,
        losses=sum(bool(group.after_loss) for group in groups),
        changes=tuple(_changes(groups, clock, lives)),
    )


def _changes(groups: Sequence[GroupSpan], clock: _Clock, lives: Lives) -> Iterator[Change]:
    """The starts of groups, and the losses that ended them."""
    for old, group in pairwise([None, *groups]):
        assert group is not None
        if old is not None and group.after_loss:
            yield _change(clock(old.launch_id, old.end_s), 0, "lost", lives)
        yield _change(clock(group.launch_id, group.start_s), group.workers, "starts", lives)


def _change(time_s: float, workers: int, what: str, lives: Lives) -> Change:
    nodes = [number for start_s, number in lives.counts if start_s <= time_s]
    return Change(time_s=time_s, nodes=nodes[-1] if nodes else 0, workers=workers, what=what)
