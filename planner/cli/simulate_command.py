"""`planner simulate`: plays a job through a trace of spot capacity, or a run through the nodes that it had."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from planner.base.disk import absolute_url
from planner.base.text import how_to_install
from planner.cli.activity import doing, progress_bar
from planner.cli.new_file import require_free, write_new_file
from planner.cli.options import ForceOption, JsonOption, SetOption, terminal_width
from planner.errors import UserError
from planner.report.simulation_text import Heading, simulation_lines, simulation_value
from planner.runner.job_argument import read_job
from planner.runner.replay_run import replay_run
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
JobOrNone = Annotated[
    str | None, typer.Argument(metavar="JOB", help="a job file (YAML). None with --replay", show_default=False)
]
ReplayOption = Annotated[
    str | None, typer.Option(metavar="RUN", help="a run's folder or URL: play the nodes, steps and costs that it had")
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


def _seconds(text: str, default: str | bool = True) -> Any:
    return typer.Option(metavar="SECONDS", help=text, show_default=default)


def simulate(
    job: JobOrNone = None,
    trace: TraceOption = None,
    synthetic: SyntheticOption = None,
    replay: ReplayOption = None,
    policy: PolicyOption = None,
    notice: NoticeOption = None,
    rates: RatesOption = None,
    step: Annotated[float | None, _seconds("of a step at the trace's most workers, without --rates")] = None,
    restart: Annotated[float | None, _seconds("for which a start pauses training", "60.0")] = None,
    save: Annotated[float | None, _seconds("for which a commit pauses training", "15.0")] = None,
    lead: Annotated[float | None, _seconds("for which newcomers start beside the group", "20.0")] = None,
    detect: Annotated[float | None, _seconds("until a loss is noticed", "5.0")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="GPUs of each node", show_default="1")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="of all draws, such as which nodes go", show_default="1")
    ] = None,
    hours: Annotated[float | None, typer.Option(metavar="HOURS", help="the first hours of the trace alone")] = None,
    plot: PlotOption = None,
    force: ForceOption = False,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Play the job through a trace of spot nodes, with planner's own decisions and with others. Starts nothing.

    It needs no GPU and no cluster, and says what it assumes. With --replay, nodes, job and times are those of a run.
    Example: planner simulate job.yaml --synthetic 'lifetime=2h group=0.3'
    """
    chosen = _policies(policy)
    given = _costs(restart, save, lead, detect)
    _require_positive("--step", step)
    _require_positive("--hours", hours)
    if replay is not None:
        _require_alone(job, (trace, synthetic, notice, rates, step, gpus_per_node, seed, hours, set_ or None))
        _print_replay(replay, chosen, given, plot, force=force, as_json=as_json)
        return
    if job is None:
        raise UserError("JOB is missing. Write a job file, or --replay RUN")
    if step is not None and rates is not None:
        raise UserError("--step and --rates both say how long a step takes. Write one of them")
    told, kind = parse_notice(notice), _plot_kind(plot, force=force)
    spec = read_job(job, set_ or [])
    drawn = 1 if seed is None else seed
    played = _trace(trace, synthetic, drawn)
    played = played if hours is None else played.until(hours * 3600)
    market = Market(notice=told, costs=Costs(**given), seed=drawn, node_gpus=gpus_per_node or 1)
    with doing("playing the trace"):
        found = simulate_job(spec, played, chosen, market, rates_file=rates, step_s=step)
    if plot is not None:
        write_new_file(Path(plot), _picture(found, kind), force=force)
    heading = _heading(spec.name, trace or f"synthetic ({synthetic})", found, drawn)
    if trace is not None and played.events:
        heading = replace(heading, assumed=(*heading.assumed, _BY_EVENTS))
    _print(heading, found, is_one=policy is not None, as_json=as_json)


def _print(heading: Heading, found: Simulated, *, is_one: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(simulation_value(heading, found.outcomes, is_one=is_one), indent=2))
    else:
        typer.echo("\n".join(simulation_lines(heading, found.outcomes, terminal_width())))


_SAID_BY_RUN = (
    "--trace",
    "--synthetic",
    "--notice",
    "--rates",
    "--step",
    "--gpus-per-node",
    "--seed",
    "--hours",
    "--set",
)


def _require_alone(job: str | None, options: Sequence[object]) -> None:
    """Refuse what a run itself says. `options` are the values of `_SAID_BY_RUN`.

    Raises:
        UserError: JOB or one of these options is written.
    """
    if job is not None:
        raise UserError("--replay takes the job of the run. Leave JOB out")
    for option, value in zip(_SAID_BY_RUN, options, strict=True):
        if value is not None:
            raise UserError(f"--replay takes from the run what {option} would say. Leave {option} out")


def _print_replay(
    run: str, policies: tuple[str, ...], given: Mapping[str, float], plot: str | None, *, force: bool, as_json: bool
) -> None:
    kind = _plot_kind(plot, force=force)
    if not run:
        raise UserError("--replay is empty. Write a run's folder or URL")
    with progress_bar(f"{run}: generations read") as progress:
        found = replay_run(absolute_url(run), policies, given, progress)
    if plot is not None:
        write_new_file(Path(plot), _picture(found.simulated, kind), force=force)
    heading = _heading(found.job, f"the nodes of {run}", found.simulated, None)
    heading = replace(heading, source="by the run")
    _print(heading, found.simulated, is_one=False, as_json=as_json)


def _policies(policy: str | None) -> tuple[str, ...]:
    if policy is None:
        return _SIDE_BY_SIDE
    if policy not in POLICIES:
        raise UserError(f"--policy is {policy!r}. Write one of {', '.join(POLICIES)}")
    return (policy,)


def _costs(restart: float | None, save: float | None, lead: float | None, detect: float | None) -> dict[str, float]:
    """The fields of `Costs` that are written."""
    options = {"restart": restart, "save": save, "lead": lead, "detect": detect}
    given = {name: seconds for name, seconds in options.items() if seconds is not None}
    for name, seconds in given.items():
        if not 0 <= seconds <= _MOST_S:
            raise UserError(f"--{name} is {seconds:g}. Write seconds from 0 to {_MOST_S:,.0f}")
    return {f"{name}_s": seconds for name, seconds in given.items()}


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
        raise UserError("write either --trace FILE.csv or --synthetic 'lifetime=2h group=0.3', or --replay RUN alone")
    return synthetic_trace(synthetic or "", seed) if file is None else read_trace(file)


def _heading(job: str, trace: str, found: Simulated, seed: int | None) -> Heading:
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
