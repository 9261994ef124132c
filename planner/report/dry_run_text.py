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
    pace = "auto (the interval that loses the least time)" if every == "auto" else f"every {every}"
    facts = [
        ("cluster", dry.cluster),
        *([("", dry.waits)] if dry.waits else []),
        ("steps", f"[{dry.step}, {dry.total_steps or '?'}), {counted(job.batch.global_batch, 'sample')} each"),
        *(("changed", change) for change in dry.changes),
        *(("length", conversion) for conversion in dry.conversions),
        *(("gradient", operation) for operation in dry.gradient),
        ("commits", f"{pace}, the newest {job.checkpoint.keep} with their files"),
        ("writes", f"below {dry.run}: run.json, jobs, drivers, generations, ledger, manifests, checkpoints, ray"),
        *(("note", note) for note in dry.notes),
    ]
    return [
        f"{job.name}: {dry.begins} in {dry.run}",
        *(line for name, text in facts for line in hanging(f"{name:<9}" if name else "", text, width)),
        "",
        *plan_table([dry.plan], width),
        "",
        NOTHING_DONE,
    ]


def dry_run_json(dry: DryRun) -> str:
    """One JSON object. Its keys are the fields of `DryRun`. The plan has the keys of `planner plan --json`."""
    fields = {field.name: getattr(dry, field.name) for field in dataclasses.fields(dry)}
    return json.dumps({**fields, "plan": plan_object(dry.plan)}, indent=1)
