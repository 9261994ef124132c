"""What `planner run` would do, as text and as JSON."""

import dataclasses
import json

from planner.base.text import counted
from planner.job import Job
from planner.report.plan_table import plan_object, plan_table
from planner.runner.dry_run import DryRun

NOTHING_DONE = "dry run: nothing was started, nothing was written"


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
