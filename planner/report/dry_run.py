"""What `planner run` would do, as a value, as text and as JSON."""

import dataclasses
import json
from dataclasses import dataclass

from planner.base.text import counted
from planner.job import Job
from planner.plan import Plan
from planner.report.plans import plan_object, plan_table

NOTHING_DONE = "dry run: nothing was started, nothing was written"


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """A start that has been checked and not made."""

    run: str
    """the run's folder or URL"""
    begins: str
    """where, in words"""
    step: int
    """the step that it would begin with"""
    total_steps: int
    """0 if the data cannot be read from here, and it takes the data to know"""
    changes: tuple[str, ...]
    """what differs from the job that the run was made with, and what that does"""
    conversions: tuple[str, ...]
    """the job's lengths that are not in steps, in steps"""
    gradient: tuple[str, ...]
    """what planner does to a step's gradient, see `gradient_words`"""
    cluster: str
    """where it would run, in words"""
    waits: str
    """what it would wait for; empty if it would begin at once"""
    plan: Plan
    """at the size that it would begin with"""
    notes: tuple[str, ...]
    """what could not be checked, or would take a while"""


def gradient_words(job: Job) -> tuple[str, ...]:
    """All that planner does to the gradient of a step, in order, from the backward passes to the optimizer's step.

    See `planner.train.step`, `planner.train.exact.gradient_sums` and `planner.train.loop.Loop._update`, which do it.
    """
    losses, clip = "each loss sum of your loop" if job.is_own else "the loss", job.train.clip_norm
    sums = "in int64 fixed point" if job.batch.equality == "bitwise" else "by FSDP"
    end = "the step is skipped" if job.train.non_finite == "skip" else "the run stops before the optimizer's step"
    return (
        f"of {losses}, divided by its count over the whole global batch",
        f"summed over rounds and workers {sums}, never averaged",
        f"if it is not finite, {end} (train.non_finite: {job.train.non_finite})",
        "not clipped (train.clip_norm: null)"
        if clip is None
        else f"scaled down to a global norm of {clip:g} where it is above that (train.clip_norm)",
    )


def dry_run_text(job: Job, dry: DryRun) -> list[str]:
    """Line by line."""
    every = job.checkpoint.every
    pace = "as often as pays" if every == "auto" else f"every {every}"
    header, *rows = plan_table([dry.plan])
    return [
        f"{job.name}: {dry.begins} in {dry.run}",
        f"cluster  {dry.cluster}",
        *([dry.waits] if dry.waits else []),
        f"steps    [{dry.step}, {dry.total_steps or '?'}), {counted(job.batch.global_batch, 'sample')} each",
        *(f"changed  {words}" for words in dry.changes),
        *(f"length   {words}" for words in dry.conversions),
        *(f"gradient {words}" for words in dry.gradient),
        f"commits  {pace}, the newest {job.checkpoint.keep} with their files",
        f"writes   below {dry.run}: run.json, jobs, drivers, generations, ledger, manifests, checkpoints, ray",
        *(f"note     {note}" for note in dry.notes),
        "",
        header,
        *rows,
        "",
        NOTHING_DONE,
    ]


def dry_run_json(dry: DryRun) -> str:
    """One object; its keys are `DryRun`'s fields, the plan's those of `planner plan --json`."""
    fields = {field.name: getattr(dry, field.name) for field in dataclasses.fields(dry)}
    return json.dumps({**fields, "plan": plan_object(dry.plan)}, indent=1)
