"""`planner plan --gpu NAME`: what the rows need of a GPU, and what to change if none fits."""

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from planner.errors import UserError
from planner.job import Job
from planner.plan import Plan
from planner.plan.commit_size import NotKnown
from planner.plan.gpu_kinds import gpu_kind, has_kind
from planner.report.memory_text import PlanMemory, misfit, plan_memory, ways_text
from planner.runner.memory import job_memory_here, ways_out_here

if TYPE_CHECKING:
    from planner.runner.length_costs import OpenData


def memory_of(job: Job, found: list[Plan], gpu: str, data: "OpenData | None") -> PlanMemory | NotKnown:
    """What each row needs of a GPU. With data, its longest sample counts."""
    kind = gpu_kind(gpu)
    memory = job_memory_here(job, "cuda", _tell, longest=None if data is None else data.longest(job))
    return memory if isinstance(memory, NotKnown) else plan_memory(job, memory, found, kind)


def memory_of_named(
    job: Job, found: list[Plan], gpu: str, data: "OpenData | None", *, has_prices: bool
) -> PlanMemory | NotKnown:
    """What each row needs of the GPU that the user names, and what to change if no row fits.

    A price list may name GPUs that planner does not know. Their memory is not known then.

    Raises:
        UserError: a cap is `auto`, and nothing fits.
    """
    if has_prices and not has_kind(gpu):
        why = f"planner does not know the GPU {gpu}. Use its memory, such as --gpu 24g, with a list of this GPU alone"
        return NotKnown(reason=why)
    rows = memory_of(job, found, gpu, data)
    if isinstance(rows, NotKnown) or (wrong := misfit(job, rows)) is None:
        return rows
    rows = replace(rows, ways=ways_out_here(wrong, rows.of_job, _tell))
    if rows.refused and rows.ways is not None:
        raise UserError(f"batch.{job.batch.auto_cap} auto: {rows.refused}. {ways_text(rows.ways)}")
    return rows


def _tell(text: str) -> None:
    typer.echo(text, err=True)
