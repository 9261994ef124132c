"""A dry run of `planner run`, as text and as JSON."""

import dataclasses
import json
from collections.abc import Sequence

from planner.base.text import counted
from planner.job import Job
from planner.job.tracking import Tracking
from planner.report.commit_text import commit_keys, dry_run_lines
from planner.report.plan_table import plan_object, plan_table
from planner.report.text_columns import hanging
from planner.runner.dry_run import DryRun

_WRITTEN = "run.json, status.json, jobs, drivers, generations, ledger, manifests, held, checkpoints, ray"
NOTHING_DONE = "dry run: nothing was started, nothing was written"
_NOTHING_KEPT = "dry run: nothing was started, nothing was kept"


def dry_run_text(job: Job, dry: DryRun, width: int | None = None) -> list[str]:
    """Return the dry run as lines of at most `width` columns, or None for whole lines."""
    every = job.checkpoint.every
    pace = "automatic interval (checkpoint.every: auto)" if every == "auto" else f"every {every}"
    facts = [
        ("cluster", dry.cluster),
        *([("", dry.waits)] if dry.waits else []),
        *([("warning", dry.warning)] if dry.warning else []),
        *(("warning", text) for text in dry.passed_over),
        ("steps", f"{_steps(dry)}, {counted(job.batch.global_batch, 'sample')} each"),
        *(("changed", change) for change in dry.changes),
        *(("length", conversion) for conversion in dry.conversions),
        *_labelled("gradient", dry.gradient),
        ("commits", f"{pace}, files kept for the newest {job.checkpoint.keep}"),
        ("copies", _copies(job)),
        *_labelled("state", dry_run_lines(job, dry)),
        ("writes", f"below {dry.run}: {_WRITTEN}"),
        ("", "Small files were written there just now and removed: the storage can hold a run."),
        *(("tracking", _tracker_text(section, dry.run)) for section in job.tracking),
        *(("note", note) for note in dry.notes),
    ]
    return [
        f"{job.name}: {dry.begins} in {dry.run}",
        *(line for name, text in facts for line in hanging(f"{name:<10}", text, width)),
        "",
        *plan_table([dry.plan], width),
        "",
        _NOTHING_KEPT,
    ]


def _copies(job: Job) -> str:
    """How often a step is copied into the memory of nodes (`checkpoint.memory`)."""
    every = job.checkpoint.memory
    if every == "off":
        return "none in memory (checkpoint.memory: off): all changes of the workers wait for storage"
    pace = "automatic interval" if every == "auto" else f"every {counted(every, 'step')}"
    return f"in memory, {pace} (checkpoint.memory: {every}), and at each commit and planned change of the workers"


def _labelled(label: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Texts of which the first has a label."""
    return [(label if number == 0 else "", text) for number, text in enumerate(texts)]


def _steps(dry: DryRun) -> str:
    """The steps that the run would train, as text. Both numbers are trained."""
    if not dry.total_steps:
        return f"from {dry.step} (the last one depends on the data)"
    return f"{dry.step} to {dry.total_steps - 1}"


def _tracker_text(section: Tracking, run: str) -> str:
    """`wandb, project my-project`: the kind and the settings that differ from their defaults."""
    values = section.model_dump(mode="json", exclude_defaults=True, exclude={"kind"})
    folders = {"tensorboard": f"below {run}/tensorboard", "jsonl": f"in {run}/tracking.jsonl"}
    place = "" if values else folders.get(section.kind, "")
    return ", ".join(filter(None, (section.kind, place, *(f"{key} {value}" for key, value in values.items()))))


def dry_run_json(dry: DryRun) -> str:
    """One JSON object: the fields of `DryRun`, with the sizes of a commit, and the plan as `planner plan --json`."""
    fields = {field.name: getattr(dry, field.name) for field in dataclasses.fields(dry)}
    for name in ("commits", "node_workers", "copies_fit", "storage_gbps"):
        del fields[name]
    sizes = commit_keys(dry.commits, dry.plan.world_size, dry.storage_gbps, dry.node_workers)
    return json.dumps({**fields, **sizes, "plan": plan_object(dry.plan)}, indent=1)
