"""Plays a job through a spot trace: reads the files, and says what is assumed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.base.text import counted, duration
from planner.errors import PlanError, UserError
from planner.files.loader import Unreadable, read_text
from planner.job import Job, batch_sizes, workers_of
from planner.plan import make_plan
from planner.runner.plan_rates import plan_rates
from planner.simulation.lives import Lives, Notice, lives_of
from planner.simulation.outcome import Outcome
from planner.simulation.play import play
from planner.simulation.regimes import make_trace, parse_regime
from planner.simulation.trace import MOST_CHANGES, Trace, parse_trace
from planner.simulation.world import Costs, Speed, by_cost

_MOST_BYTES = 2**26
_ASSUMED_STEP_S = 5.0
# The controller looks once a minute, which takes some ms and 11 us for each worker that there is room for. So this is
# about ten minutes on a slow machine.
_MOST_WORK = 50_000_000
_LOOK_S, _LOOK_WORK = 60.0, 400
# Below, times of a long trace have no room for a step. Above, no step ends.
_LEAST_STEP_S, _MOST_STEP_S = 1e-5, 1e12


@dataclass(frozen=True, kw_only=True)
class Market:
    """What is assumed of the nodes."""

    notice: Notice
    """how losses are announced"""
    costs: Costs
    """seconds that changes take"""
    seed: int = 1
    """of all draws"""
    node_gpus: int = 1
    """GPUs of each node"""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What policies made of a trace."""

    lives: Lives
    speed: Speed
    outcomes: tuple[Outcome, ...]
    assumed: tuple[str, ...]
    """sentences: what the figures depend on"""


def read_trace(path: str) -> Trace:
    """The trace of a CSV file, with the events of its sibling `NAME.events.csv` if there is one.

    Raises:
        UserError: a file cannot be read, or is wrong.
    """
    text = _text(Path(path))  # first, because a folder such as / has no name
    sibling = Path(path).with_suffix("").with_suffix(".events.csv")
    events = _text(sibling) if sibling.exists() else ""
    return parse_trace(text, path, events, str(sibling))


def _text(path: Path) -> str:
    try:
        return read_text(path, "trace (CSV with time_s,available_nodes)", _MOST_BYTES)
    except Unreadable as error:
        raise UserError(f"{path}: {error}") from None


def synthetic_trace(text: str, seed: int) -> Trace:
    """The trace of stated rates (`planner.simulation.regimes`).

    Raises:
        UserError: the text is wrong.
    """
    return make_trace(parse_regime(text), seed)


def simulate_job(
    job: Job,
    trace: Trace,
    policies: Sequence[str],
    market: Market,
    *,
    rates_file: str | None = None,
    step_s: float | None = None,
) -> Simulated:
    """Play a job through a trace, once for each policy.

    Args:
        job: the job.
        trace: nodes over time.
        policies: some of `planner.simulation.outcome.POLICIES`.
        market: what is assumed of the nodes.
        rates_file: a rates file, whose seconds per step count.
        step_s: seconds of a step at the trace's most workers, without a rates file. None: 5 s.

    Raises:
        UserError: the rates are wrong, or the trace is too long or never has enough nodes for the job.
    """
    require_playable(trace, market.node_gpus)
    lives = lives_of(trace, market.notice, market.seed)
    node_workers = market.node_gpus  # a worker has one GPU, or none
    workers = workers_of(job)
    most = min(lives.peak * node_workers, workers.most)
    if most < workers.least:
        raise PlanError(
            f"the trace has {counted(lives.peak, 'node')} at most, with room for {counted(most, 'worker')}, and "
            f"the job needs {workers.least} (workers.min). Lower it, or write --gpus-per-node"
        )
    seconds, said = _step_times(job, most, rates_file, step_s)
    speed = Speed(sizes=batch_sizes(job), workers=workers, node_workers=node_workers, seconds=seconds, peak=lives.peak)
    require_possible(speed)
    return Simulated(
        lives=lives,
        speed=speed,
        outcomes=tuple(play(policy, lives, speed, market.costs) for policy in policies),
        assumed=(said, *_assumed(node_workers, market.notice, market.costs), *without_floor(job)),
    )


def require_playable(trace: Trace, node_workers: int) -> None:
    """Refuse what would take hours to play.

    Raises:
        PlanError: the trace is too long, or has too many changes or nodes.
    """
    if trace.changes > MOST_CHANGES:
        raise PlanError(
            f"nodes come or go {trace.changes:,} times in the trace, and planner plays at most {MOST_CHANGES:,}. Write "
            "--hours for the first part alone"
        )
    peak = max(row.nodes for row in trace.rows) * node_workers
    if trace.end_s / _LOOK_S * (peak + _LOOK_WORK) > _MOST_WORK or peak > _MOST_WORK / _LOOK_WORK:
        most_s = _MOST_WORK * _LOOK_S / (peak + _LOOK_WORK)
        way_out = f"Write --hours {most_s / 3600:.0f}" if peak <= _MOST_WORK / _LOOK_WORK else "Use fewer"
        raise PlanError(
            f"the trace lasts {trace.end_s / 3600:,.0f} hours and has room for up to {counted(peak, 'worker')}, which "
            f"takes too long to play. {way_out}"
        )


def require_possible(speed: Speed) -> None:
    """Check the seconds of a step.

    Raises:
        UserError: those of a size are out of range.
    """
    for size, seconds in enumerate(speed.steps_s[1:], start=1):
        if not _LEAST_STEP_S <= seconds <= _MOST_STEP_S:
            raise UserError(f"a step with {counted(size, 'worker')} takes {seconds:g} s. Correct --rates or --step")


def _step_times(
    job: Job, most: int, rates_file: str | None, step_s: float | None
) -> tuple[Callable[[int], float], str]:
    """World size -> seconds per step, and where they come from."""
    if rates_file is None:
        at_most_s = _ASSUMED_STEP_S if step_s is None else step_s
        by = ", by --step" if step_s is not None else " (--step or --rates say otherwise)"
        said = (
            f"a step takes {duration(at_most_s)} with {counted(most, 'worker')}{by}. Fewer workers take longer by the "
            "plan's cost"
        )
        return by_cost(batch_sizes(job), most, at_most_s), said
    timed = plan_rates(job, rates_file)

    def seconds(size: int) -> float:
        plan = make_plan(batch_sizes(job), size)
        cost = timed.cost(timed.found(plan, job.batch.auto_cap) if job.batch.auto_cap else plan)
        return cost.step_s - cost.parts.commit_s

    return seconds, f"a step takes {duration(seconds(most))} with {counted(most, 'worker')}, by {rates_file}"


def without_floor(job: Job) -> list[str]:
    """That a job's floor is not simulated. Empty without a floor."""
    return ["every node is one of the trace: workers.min_on is not simulated"] if job.workers.floor else []


def _assumed(node_workers: int, notice: Notice, costs: Costs) -> list[str]:
    told = (
        f"{notice.share:.0%} of the losses are announced {duration(notice.seconds)} before"
        if notice.share
        else "No loss is announced"
    )
    starts = (
        f"a start pauses training for {duration(costs.restart_s)}, a commit for {duration(costs.save_s)}. Newcomers "
        f"take {duration(costs.lead_s)} beside the group. A loss is noticed after {duration(costs.detect_s)}"
    )
    return [f"a node holds {counted(node_workers, 'worker')}. {told}", starts]
