"""`planner simulate JOB`: plays a job through a trace of spot capacity."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from planner.base.text import how_to_install
from planner.cli.activity import doing
from planner.cli.new_file import require_free, write_new_file
from planner.cli.options import ForceOption, JobArgument, JsonOption, SetOption, terminal_width
from planner.errors import UserError
from planner.report.simulation_text import Heading, simulation_lines, simulation_value
from planner.runner.job_argument import read_job
from planner.runner.simulate_job import Market, Simulated, read_trace, simulate_job, synthetic_trace
from planner.simulation.outcome import POLICIES
from planner.simulation.quantities import parse_notice
from planner.simulation.trace import Trace
from planner.simulation.world import Costs

_SIDE_BY_SIDE = ("ours", "stock", "fair", "optimum")
_MOST_S = 1e6
_BY_EVENTS = "nodes come and go as the events file says, whatever available_nodes says"


TraceOption = Annotated[
    str | None, typer.Option(metavar="CSV", help="nodes over time: time_s,available_nodes. The last row is the end")
]
SyntheticOption = Annotated[
    str | None,
    typer.Option(metavar="RATES", help="make a trace: 'nodes=16 lifetime=2h group=0.3 arrivals=10m length=24h'"),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help=f"one of {', '.join(POLICIES)} (by default {', '.join(_SIDE_BY_SIDE)} side by side)"
    ),
]
NoticeOption = Annotated[
    str | None, typer.Option(metavar="TIME[:SHARE]", help="30s:0.5 announces half of the losses 30 s before")
]
RatesOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="what `planner fit RUN` wrote: seconds per step at each size")
]
PlotOption = Annotated[str | None, typer.Option(metavar="FILE", help="draw nodes and workers over time (.svg or .png)")]


def _seconds(text: str) -> Any:
    return typer.Option(metavar="SECONDS", help=text)


def simulate(
    job: JobArgument,
    trace: TraceOption = None,
    synthetic: SyntheticOption = None,
    policy: PolicyOption = None,
    notice: NoticeOption = None,
    rates: RatesOption = None,
    step: Annotated[float | None, _seconds("of a step at the trace's most workers, without --rates")] = None,
    restart: Annotated[float, _seconds("for which a start pauses training")] = 60.0,
    save: Annotated[float, _seconds("for which a commit pauses training")] = 15.0,
    lead: Annotated[float, _seconds("for which newcomers start beside the group")] = 20.0,
    detect: Annotated[float, _seconds("until a loss is noticed")] = 5.0,
    gpus_per_node: Annotated[int, typer.Option(metavar="N", min=1, help="GPUs of each node")] = 1,
    seed: Annotated[int, typer.Option(metavar="N", help="of all draws, such as which nodes go")] = 1,
    hours: Annotated[float | None, typer.Option(metavar="HOURS", help="the first hours of the trace alone")] = None,
    plot: PlotOption = None,
    force: ForceOption = False,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Play the job through a trace of spot nodes, with planner's own decisions and with others. Starts nothing.

    It needs no GPU and no cluster, and says what it assumes.
    Example: planner simulate job.yaml --synthetic 'lifetime=2h group=0.3'
    """
    chosen = _policies(policy)
    costs = _costs(restart, save, lead, detect)
    _require_positive("--step", step)
    _require_positive("--hours", hours)
    if step is not None and rates is not None:
        raise UserError("--step and --rates both say how long a step takes. Write one of them")
    told, kind = parse_notice(notice), _plot_kind(plot, force=force)
    spec = read_job(job, set_ or [])
    played = _trace(trace, synthetic, seed)
    played = played if hours is None else played.until(hours * 3600)
    market = Market(notice=told, costs=costs, seed=seed, node_gpus=gpus_per_node)
    with doing("playing the trace"):
        found = simulate_job(spec, played, chosen, market, rates_file=rates, step_s=step)
    if plot is not None:
        write_new_file(Path(plot), _picture(found, kind), force=force)
    heading = _heading(spec.name, trace or f"synthetic ({synthetic})", found, seed)
    if trace is not None and played.events:
        heading = replace(heading, assumed=(*heading.assumed, _BY_EVENTS))
    if as_json:
        typer.echo(json.dumps(simulation_value(heading, found.outcomes, is_one=policy is not None), indent=2))
    else:
        typer.echo("\n".join(simulation_lines(heading, found.outcomes, terminal_width())))


def _policies(policy: str | None) -> tuple[str, ...]:
    if policy is None:
        return _SIDE_BY_SIDE
    if policy not in POLICIES:
        raise UserError(f"--policy is {policy!r}. Write one of {', '.join(POLICIES)}")
    return (policy,)


def _costs(restart: float, save: float, lead: float, detect: float) -> Costs:
    given = {"--restart": restart, "--save": save, "--lead": lead, "--detect": detect}
    for name, seconds in given.items():
        if not 0 <= seconds <= _MOST_S:
            raise UserError(f"{name} is {seconds:g}. Write seconds from 0 to {_MOST_S:,.0f}")
    return Costs(restart_s=restart, save_s=save, lead_s=lead, detect_s=detect)


def _require_positive(name: str, value: float | None) -> None:
    if value is not None and not 1e-3 <= value <= _MOST_S:
        raise UserError(f"{name} is {value:g}. Write a number from 0.001 to {_MOST_S:,.0f}")


def _plot_kind(plot: str | None, *, force: bool) -> Literal["svg", "png"]:
    """The kind of the picture's file. Checked before long work.

    Raises:
        UserError: it has another name, it cannot be written, or matplotlib is missing.
    """
    if plot is None:
        return "svg"
    suffix = Path(plot).suffix.lower()
    if suffix not in (".svg", ".png"):
        raise UserError(f"--plot is {plot!r}. Write a file whose name ends with .svg or .png")
    try:
        import matplotlib  # noqa: F401, ICN001  only whether it is there
    except ImportError as error:
        raise UserError(f"--plot needs matplotlib. Install it: {how_to_install('report')}") from error
    require_free(Path(plot), force=force)
    return "png" if suffix == ".png" else "svg"


def _picture(found: Simulated, kind: Literal["svg", "png"]) -> bytes:
    from planner.pictures.capacity import Steps, capacity_picture  # matplotlib

    counts = found.lives.counts
    room = Steps(
        label="workers that the nodes have room for",
        times_s=[time_s for time_s, _ in counts],
        values=[nodes * found.speed.node_workers for _, nodes in counts],
    )
    policies = [
        Steps(
            label=f"{outcome.policy}: {outcome.useful_over_ideal:.0%} of the ideal run's work",
            times_s=[change.time_s for change in outcome.changes],
            values=[change.workers for change in outcome.changes],
        )
        for outcome in found.outcomes
    ]
    return capacity_picture(room, policies, found.lives.end_s, kind)


def _trace(file: str | None, synthetic: str | None, seed: int) -> Trace:
    if (file is None) == (synthetic is None):
        raise UserError("write either --trace FILE.csv or --synthetic 'lifetime=2h group=0.3'")
    return synthetic_trace(synthetic or "", seed) if file is None else read_trace(file)


def _heading(job: str, trace: str, found: Simulated, seed: int) -> Heading:
    lives = found.lives
    return Heading(
        job=job,
        trace=trace,
        nodes=lives.peak,
        usual_nodes=lives.usual,
        losses=sum(life.leaves_s <= lives.end_s for life in lives.lives),
        total_s=lives.end_s,
        seed=seed,
        assumed=found.assumed,
    )
