"""`planner plan JOB`: prints the plan at each GPU count, made by the same function that the workers call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from planner.base.text import counted
from planner.cli.counts import parse_counts
from planner.cli.options import (
    JobArgument,
    JsonOption,
    SetOption,
    StorageOption,
    print_heading,
    require_rate,
    terminal_width,
)
from planner.errors import UserError
from planner.job import Job, workers_of
from planner.job.compute import ComputeRule, compute_rule
from planner.job.step_schedule import conversions
from planner.plan import Plan
from planner.plan.commit_size import CommitSize, NotKnown
from planner.plan.gpu_kinds import gpu_kind, has_kind
from planner.plan.plan import Fit
from planner.plan.surplus import advice
from planner.report.commit_text import commit_keys, plan_lines
from planner.report.compute_text import compute_text, compute_value
from planner.report.cost_text import Costs, cost_columns, cost_keys, cost_lines, plan_costs, surplus_lines
from planner.report.length_table import length_keys, length_lines
from planner.report.memory_text import (
    PlanMemory,
    auto_note,
    memory_columns,
    memory_keys,
    memory_lines,
    misfit,
    plan_memory,
    ways_text,
)
from planner.report.plan_table import Mixes, plan_json, plan_table
from planner.report.text_columns import wrapped
from planner.runner.commit_size import commit_size
from planner.runner.job_argument import plans, read_job
from planner.runner.memory import job_memory_here, ways_out_here
from planner.runner.plan_rates import PlanRates, plan_rates
from planner.wording.training import conversion_text

if TYPE_CHECKING:
    from planner.cli.plan_cluster import OnCluster
    from planner.runner.length_costs import OpenData, StepLengths


_ASSUMED = (
    "micro-batches follow from the lengths of each step's samples. The table assumes samples of equal length within "
    "batch.max_tokens: rounds are the fewest possible"
)


def plan(
    job: JobArgument,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="COUNTS", help="such as 1-16, 7 or 3,5,7 (by default workers.min to workers.max)"),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="a `ray up` or KubeRay file: show the counts that it reaches, with nodes"),
    ] = None,
    storage_gbps: StorageOption = None,
    rates: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="what `planner fit RUN` wrote: show seconds per step and tokens per second"),
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="your price list (a SkyPilot catalog, or YAML): show dollars per step, per million tokens and per run",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="whether it fits such a GPU: h100-80g, L4, or 24g (else that of --cluster)"),
    ] = None,
    lengths: Annotated[
        bool, typer.Option("--lengths", help="read the data, and show what steps cost by the lengths of their samples")
    ] = False,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how the job's global batch is split at each GPU count. Starts nothing.

    It needs no GPU and no cluster.
    Example: planner plan job.yaml --gpus 1-16
    """
    require_rate(storage_gbps)
    _require_rates(rates, prices)
    spec = read_job(job, set_ or [])
    asked = None if gpus is None else parse_counts(gpus)
    there = None if cluster is None else _on_cluster(cluster, spec, asked, gpu)
    timed = None if rates is None else plan_rates(spec, rates, prices, gpu, _on_a_node(there), _gpu_of(there))
    data = _open_lengths(spec) if lengths else None
    found, memory = _rows(_Asked(job=spec, counts=asked, gpu=gpu, there=there, timed=timed, data=data))
    shown = _Shown(
        job=spec,
        plans=found,
        there=there,
        size=commit_size(spec, may_build=False),
        storage_gbps=storage_gbps,
        timed=timed,
        costs=None if timed is None else plan_costs(timed, found),
        by_length=None if data is None else _length_costs(spec, data, found),
        memory=memory,
    )
    if as_json:
        typer.echo(plan_json(found, shown.mixes, partial(_more_keys, shown), **shown.row_facts))
    else:
        _print(shown, terminal_width())


class _RowFacts(TypedDict):
    sample_tokens: int | None
    fits: Mapping[int, Fit]


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """What the command shows."""

    job: Job
    plans: list[Plan]
    there: "OnCluster | None"
    size: CommitSize | NotKnown
    storage_gbps: float | None
    timed: PlanRates | None
    costs: Costs | None
    by_length: "StepLengths | None"
    memory: PlanMemory | NotKnown | None

    @property
    def mixes(self) -> Mixes | None:
        """Count -> its nodes of the cluster. None without a cluster."""
        return None if self.there is None else self.there.mixes

    @property
    def compute(self) -> ComputeRule | None:
        """How workers compute. None: the user's own loop decides it."""
        return compute_rule(self.job, on_gpu=bool(self.job.workers.gpus))

    @property
    def row_facts(self) -> "_RowFacts":
        """What notes on rows depend on: tokens of each sample, if they are known and equal, and what fits."""
        fits = self.memory.kinds_of_fit if isinstance(self.memory, PlanMemory) else {}
        return {"sample_tokens": self.job.data.sample_tokens(self.job.model), "fits": fits}

    @property
    def on_a_node(self) -> Mapping[int, int] | None:
        """Count -> the workers on the fullest node of the cluster. None without a cluster."""
        return _on_a_node(self.there)


def _gpu_of(there: "OnCluster | None") -> str:
    return "" if there is None else there.only_gpu


def _on_a_node(there: "OnCluster | None") -> Mapping[int, int] | None:
    return None if there is None else there.workers_on_a_node


def _print(shown: _Shown, width: int | None) -> None:
    """Print the heading, the table and what is below it."""
    spec, there, timed, costs = shown.job, shown.there, shown.timed, shown.costs
    cluster = [] if there is None else [there.line, *filter(None, [there.gpu_line])]
    first = _heading(spec, has_lengths=shown.by_length is not None)
    heading = [*first, *cluster, f"compute: {compute_text(shown.compute)}"]
    typer.echo("\n".join(line for text in heading for line in wrapped(text, width)))
    extra = [
        *([] if timed is None or costs is None else cost_columns(timed, costs)),
        *(memory_columns(shown.memory) if isinstance(shown.memory, PlanMemory) else []),
    ]
    header, *rows = plan_table(shown.plans, width, shown.mixes, extra=extra, **shown.row_facts)
    typer.echo()
    print_heading(header)
    typer.echo("\n".join(rows))
    typer.echo()
    counts = [plan.world_size for plan in shown.plans]
    lines = [] if timed is None or costs is None else cost_lines(timed, shown.plans, costs)
    of_memory = [] if shown.memory is None else memory_lines(shown.memory)
    for text in [*lines, *of_memory, *plan_lines(spec, shown.size, counts, shown.storage_gbps, shown.on_a_node)]:
        typer.echo("\n".join(wrapped(text, width)))
    if shown.by_length is not None:
        typer.echo("\n".join(["", *length_lines(shown.by_length, width)]))
    notes = () if there is None else there.notes
    auto = auto_note(spec, has_gpu=shown.memory is not None, has_rates=timed is not None)
    auto = "" if isinstance(shown.memory, PlanMemory) else auto
    for note in filter(None, (auto, *surplus_lines(shown.plans, costs), _outside(spec, counts), *notes)):
        typer.echo("\n".join(["", *wrapped(note, width, later="")]))


def _more_keys(shown: _Shown, plan: Plan) -> dict[str, object]:
    size = plan.world_size
    most = None if shown.on_a_node is None else shown.on_a_node[size]
    return {
        "compute": compute_value(shown.compute),
        **commit_keys(shown.size, size, shown.storage_gbps, most),
        "surplus": advice(plan),
        **({} if shown.by_length is None else length_keys(shown.by_length, size)),
        **({} if shown.costs is None else cost_keys(shown.costs[size])),
        **({} if shown.memory is None else memory_keys(shown.memory, size)),
    }


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What decides the rows."""

    job: Job
    counts: Sequence[int] | None
    """that the user names"""
    gpu: str | None
    there: "OnCluster | None"
    timed: PlanRates | None
    data: "OpenData | None"


def _rows(asked: _Asked) -> tuple[list[Plan], PlanMemory | NotKnown | None]:
    """A plan for each row, and what it needs of a GPU. With an `auto` cap, it has what fits, or what rates say.

    With data, that is for its longest sample. A price list may name GPUs that planner does not know. Their memory is
    not known then.

    Raises:
        UserError: a cap is `auto`, and nothing fits into the GPU that the user names.
    """
    job, gpu, there, timed = asked.job, asked.gpu, asked.there, asked.timed
    found = plans(job, asked.counts if there is None else there.counts)
    if timed is not None and job.batch.auto_cap:
        longest = 0 if asked.data is None else asked.data.longest(job)
        found = [timed.found(plan, job.batch.auto_cap, longest or 1) for plan in found]
    memory: PlanMemory | NotKnown | None = None
    if gpu is not None and timed is not None and timed.offers and not has_kind(gpu):
        why = f"planner does not know the GPU {gpu}. Use its memory, such as --gpu 24g, with a list of this GPU alone"
        memory = NotKnown(reason=why)
    elif gpu is not None:
        memory = _tried(job, found, gpu, asked.data)
    elif there is not None and there.gpu:
        memory = _memory(job, found, there.gpu, asked.data)
    return (list(memory.plans) if isinstance(memory, PlanMemory) else found), memory


def _memory(job: Job, found: list[Plan], gpu: str, data: "OpenData | None") -> PlanMemory | NotKnown:
    """What each row needs of a GPU. With data, its longest sample counts."""
    kind = gpu_kind(gpu)
    memory = job_memory_here(job, "cuda", _tell, longest=None if data is None else data.longest(job))
    return memory if isinstance(memory, NotKnown) else plan_memory(job, memory, found, kind)


def _tried(job: Job, found: list[Plan], gpu: str, data: "OpenData | None") -> PlanMemory | NotKnown:
    """And what to change if no row fits.

    Raises:
        UserError: a cap is `auto`, and nothing fits.
    """
    rows = _memory(job, found, gpu, data)
    if isinstance(rows, NotKnown) or (wrong := misfit(job, rows)) is None:
        return rows
    rows = replace(rows, ways=ways_out_here(wrong, rows.of_job, _tell))
    if rows.refused and rows.ways is not None:
        raise UserError(f"batch.{job.batch.auto_cap} auto: {rows.refused}. {ways_text(rows.ways)}")
    return rows


def _tell(text: str) -> None:
    typer.echo(text, err=True)


def _require_rates(rates: str | None, prices: str | None) -> None:
    """Check that no option lacks the one that it needs.

    Raises:
        UserError: there are prices without rates.
    """
    if prices is not None and rates is None:
        raise UserError("--prices needs seconds per step. Write --rates with a file that planner fit RUN wrote")


def _open_lengths(job: Job) -> "OpenData":
    from planner.cli.activity import progress_bar
    from planner.runner.length_costs import open_lengths  # loads numpy and the data, which other plans do not need

    with progress_bar("data checked") as progress:
        return open_lengths(job, progress)


def _length_costs(job: Job, data: "OpenData", found: list[Plan]) -> "StepLengths":
    from planner.runner.length_costs import costs_of

    return costs_of(job, data, found)


def _on_cluster(file: str, job: Job, asked: list[int] | None, gpu: str | None) -> "OnCluster":
    """The counts that the cluster of a file can reach. A GPU that the user names replaces the file's."""
    from planner.cli.plan_cluster import on_cluster  # imports numpy, which a plan without a cluster does not need

    found = on_cluster(file, job, asked)
    return found if gpu is None else replace(found, gpus=(), gpu_line="")


def _heading(job: Job, *, has_lengths: bool) -> list[str]:
    batch = job.batch
    first = f"{job.name}: global batch {batch.global_batch}, {_caps(job)} in a micro-batch"
    assumed = _ASSUMED if has_lengths else f"{_ASSUMED}. --lengths reads the data"
    by_length = [] if batch.max_tokens is None else [assumed]
    return [first, *map(conversion_text, conversions(job)), *by_length]


def _caps(job: Job) -> str:
    """The caps of a micro-batch. With `max_tokens`, `max_micro: auto` adds none."""
    samples, tokens = job.batch.max_micro, job.batch.max_tokens
    if tokens is None:
        return "as many as fit" if samples == "auto" else f"at most {samples}"
    if tokens == "auto":
        return "as many tokens as fit" + ("" if samples == "auto" else f" and at most {counted(samples, 'sample')}")
    return f"at most {tokens:,} tokens" if samples == "auto" else f"at most {samples} samples and {tokens:,} tokens"


def _outside(job: Job, counts: list[int]) -> str:
    """A note if some counts are outside of the range that `planner run` uses. Else empty."""
    workers = workers_of(job)
    least, most = workers.least, workers.most
    if min(counts) >= least and max(counts) <= most:
        return ""
    return (
        f"This job runs on {least} to {most} workers (workers.min, workers.max, batch.global). Other rows are what-if."
    )
