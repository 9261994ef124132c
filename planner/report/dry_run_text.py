"""A dry run of `planner run`, as text and as JSON."""

import dataclasses
import json

from planner.base.text import counted
from planner.job import Job
from planner.report.plan_table import plan_object, plan_table
from planner.report.text_columns import hanging
from planner.runner.dry_run import DryRun

NOTHING_DONE = "dry run: nothing was started, nothing was written"


def dry_run_text(job: Job, dry: DryRun, width: int | None = None) -> list[str]:
    """Return the dry run as lines of at most `width` columns, or None for whole lines."""
    every = job.checkpoint.every
    pace = "automatic interval (checkpoint.every: auto)" if every == "auto" else f"every {every}"
    first, *more = dry.gradient
    facts = [
        ("cluster", dry.cluster),
        *([("", dry.waits)] if dry.waits else []),
        *([("warning", dry.warning)] if dry.warning else []),
        ("steps", f"{_steps(dry)}, {counted(job.batch.global_batch, 'sample')} each"),
        *(("changed", change) for change in dry.changes),
        *(("length", conversion) for conversion in dry.conversions),
        ("gradient", first),
        *(("", operation) for operation in more),
        ("commits", f"{pace}, files kept for the newest {job.checkpoint.keep}"),
        ("writes", f"below {dry.run}: run.json, jobs, drivers, generations, ledger, manifests, checkpoints, ray"),
        *(("note", note) for note in dry.notes),
    ]
    return [
        f"{job.name}: {dry.begins} in {dry.run}",
        *(line for name, text in facts for line in hanging(f"{name:<10}", text, width)),
        "",
        *plan_table([dry.plan], width),
        "",
        NOTHING_DONE,
    ]


def _steps(dry: DryRun) -> str:
    """The steps that the run would train, as text. Both numbers are trained."""
    if not dry.total_steps:
        return f"from {dry.step} (the last one depends on the data)"
    return f"{dry.step} to {dry.total_steps - 1}"


def dry_run_json(dry: DryRun) -> str:
    """One JSON object. Its keys are the fields of `DryRun`. The plan has the keys of `planner plan --json`."""
    fields = {field.name: getattr(dry, field.name) for field in dataclasses.fields(dry)}
    return json.dumps({**fields, "plan": plan_object(dry.plan)}, indent=1)
