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
from planner.plan.plan import Fit
from planner.plan.surplus import advice
from planner.report.auto_text import auto_note
from planner.report.commit_text import commit_keys, plan_lines
from planner.report.compute_text import compute_text, compute_value
from planner.report.floor_text import floor_price, floor_text
from planner.report.plan_table import Column, Mixes, plan_json, plan_table
from planner.report.text_columns import wrapped
from planner.runner.commit_size import commit_size
from planner.runner.job_argument import plans, read_job
from planner.wording.training import conversion_text

if TYPE_CHECKING:
    from planner.cli.plan_cluster import OnCluster
    from planner.report.cost_text import Costs
    from planner.report.memory_text import PlanMemory
    from planner.runner.length_costs import OpenData, StepLengths
    from planner.runner.plan_rates import PlanRates


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
    timed = None if rates is None else _timed(spec, rates, prices, gpu, there)
    data = _open_lengths(spec) if lengths else None
    found, memory = _rows(_Asked(job=spec, counts=asked, gpu=gpu, there=there, timed=timed, data=data))
    shown = _Shown(
        job=spec,
        plans=found,
        there=there,
        size=commit_size(spec, may_build=False),
        storage_gbps=storage_gbps,
        timed=timed,
        costs=None if timed is None else _costs(timed, found),
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
    fewest: int


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """What the command shows."""

    job: Job
    plans: list[Plan]
    there: "OnCluster | None"
    size: CommitSize | NotKnown
    storage_gbps: float | None
    timed: "PlanRates | None"
    costs: "Costs | None"
    by_length: "StepLengths | None"
    memory: "PlanMemory | NotKnown | None"

    @property
    def known_memory(self) -> "PlanMemory | None":
        """What the rows need of a GPU. None if it is not known, or not asked for."""
        return None if isinstance(self.memory, NotKnown) else self.memory

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
        known = self.known_memory
        return {
            "sample_tokens": self.job.data.sample_tokens(self.job.model),
            "fits": {} if known is None else known.kinds_of_fit,
            "fewest": 1 if known is None else known.fewest,
        }

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
    spec, there = shown.job, shown.there
    cluster = [] if there is None else [there.line, *filter(None, [there.gpu_line])]
    first = _heading(spec, has_lengths=shown.by_length is not None)
    floor = [text] if (text := floor_text(spec.workers)) else []
    heading = [*first, *floor, *cluster, f"compute: {compute_text(shown.compute)}"]
    typer.echo("\n".join(line for text in heading for line in wrapped(text, width)))
    header, *rows = plan_table(shown.plans, width, shown.mixes, extra=_more_columns(shown), **shown.row_facts)
    typer.echo()
    print_heading(header)
    typer.echo("\n".join(rows))
    typer.echo()
    counts = [plan.world_size for plan in shown.plans]
    for text in [*_more_lines(shown), *plan_lines(spec, shown.size, counts, shown.storage_gbps, shown.on_a_node)]:
        typer.echo("\n".join(wrapped(text, width)))
    if shown.by_length is not None:
        from planner.report.length_table import length_lines

        typer.echo("\n".join(["", *length_lines(shown.by_length, width)]))
    notes = () if there is None else there.notes
    auto = auto_note(spec, has_gpu=shown.memory is not None, has_rates=shown.timed is not None)
    auto = auto if shown.known_memory is None else ""
    for note in filter(None, (auto, _surplus(shown), _outside(spec, counts), *notes)):
        typer.echo("\n".join(["", *wrapped(note, width, later="")]))


# Modules for rates, memory and lengths are imported only with their options: a plan without them takes less time.


def _more_columns(shown: _Shown) -> list[Column]:
    """The columns of seconds, dollars and memory."""
    columns: list[Column] = []
    if shown.timed is not None and shown.costs is not None:
        from planner.report.cost_text import cost_columns

        columns += cost_columns(shown.timed, shown.costs)
    if shown.known_memory is not None:
        from planner.report.memory_text import memory_columns

        columns += memory_columns(shown.known_memory)
    return columns


def _more_lines(shown: _Shown) -> list[str]:
    """Where seconds, dollars and memory come from."""
    lines: list[str] = []
    if shown.timed is not None and shown.costs is not None:
        from planner.report.cost_text import cost_lines

        lines += cost_lines(shown.timed, shown.plans, shown.costs)
        most = max(plan.world_size for plan in shown.plans)
        lines += filter(None, [floor_price(shown.job.workers, most, shown.timed.offers)])
    if shown.memory is not None:
        from planner.report.memory_text import memory_lines

        lines += memory_lines(shown.memory)
    return lines


def _surplus(shown: _Shown) -> str:
    """What is best done with more GPUs than the batch can feed, for the greatest such count. Else empty."""
    if shown.costs is None:
        return advice(max(shown.plans, key=lambda each: each.world_size))
    from planner.report.cost_text import surplus_line

    return surplus_line(shown.plans, shown.costs)


def _more_keys(shown: _Shown, plan: Plan) -> dict[str, object]:
    size = plan.world_size
    most = None if shown.on_a_node is None else shown.on_a_node[size]
    return {
        "compute": compute_value(shown.compute),
        **commit_keys(shown.size, size, shown.storage_gbps, most),
        "surplus": advice(plan),
        **_optional_keys(shown, size),
    }


def _optional_keys(shown: _Shown, size: int) -> dict[str, object]:
    """The keys about one world size of lengths, seconds, dollars and memory."""
    keys: dict[str, object] = {}
    if shown.by_length is not None:
        from planner.report.length_table import length_keys

        keys |= length_keys(shown.by_length, size)
    if shown.costs is not None:
        from planner.report.cost_text import cost_keys

        keys |= cost_keys(shown.costs[size])
    if shown.memory is not None:
        from planner.report.memory_text import memory_keys

        keys |= memory_keys(shown.memory, size)
    return keys


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What decides the rows."""

    job: Job
    counts: Sequence[int] | None
    """that the user names"""
    gpu: str | None
    there: "OnCluster | None"
    timed: "PlanRates | None"
    data: "OpenData | None"


def _rows(asked: _Asked) -> "tuple[list[Plan], PlanMemory | NotKnown | None]":
    """A plan for each row, and what it needs of a GPU. With an `auto` cap, it has what fits, or what rates say.

    With data, that is for its longest sample.

    Raises:
        UserError: a cap is `auto`, and nothing fits into the GPU that the user names.
    """
    job, timed = asked.job, asked.timed
    found = plans(job, asked.counts if asked.there is None else asked.there.counts)
    if timed is not None and job.batch.auto_cap:
        longest = 0 if asked.data is None else asked.data.longest(job)
        found = [timed.found(plan, job.batch.auto_cap, longest or 1) for plan in found]
    memory = _memory(asked, found)
    return (found if memory is None or isinstance(memory, NotKnown) else list(memory.plans)), memory


def _memory(asked: _Asked, found: list[Plan]) -> "PlanMemory | NotKnown | None":
    """What each row needs of the GPU that the user or the cluster's file names. None without a GPU.

    Raises:
        UserError: a cap is `auto`, and nothing fits into the GPU that the user names.
    """
    of_cluster, timed = "" if asked.there is None else asked.there.gpu, asked.timed
    # The prices of a memory such as 24g are of one GPU, which may have a little less. Its memory counts.
    gpu = timed.priced_gpu or asked.gpu if timed is not None else asked.gpu
    if gpu is None and not of_cluster:
        return None
    from planner.cli.plan_memory import memory_of, memory_of_named

    if gpu is None:
        return memory_of(asked.job, found, of_cluster, asked.data)
    has_prices = timed is not None and bool(timed.offers)
    return memory_of_named(asked.job, found, gpu, asked.data, has_prices=has_prices)


def _require_rates(rates: str | None, prices: str | None) -> None:
    """Check that no option lacks the one that it needs.

    Raises:
        UserError: there are prices without rates.
    """
    if prices is not None and rates is None:
        raise UserError("--prices needs seconds per step. Write --rates with a file that planner fit RUN wrote")


def _timed(job: Job, rates: str, prices: str | None, gpu: str | None, there: "OnCluster | None") -> "PlanRates":
    """What the files of rates and prices say for the job."""
    from planner.runner.plan_rates import plan_rates

    return plan_rates(job, rates, prices, gpu, _on_a_node(there), _gpu_of(there))


def _costs(timed: "PlanRates", found: list[Plan]) -> "Costs":
    from planner.report.cost_text import plan_costs

    return plan_costs(timed, found)


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
