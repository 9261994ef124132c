"""A dry run of `planner run`, as text and as JSON."""

import json
from collections.abc import Sequence

from planner.base.text import counted
from planner.job import Job
from planner.job.gradient import GradientRule, gradient_rule, placement_text
from planner.job.step_schedule import conversions
from planner.job.tracking import Tracking
from planner.plan.commit_size import NotKnown
from planner.report.auto_text import auto_note
from planner.report.commit_text import commit_keys, dry_run_lines
from planner.report.compute_text import compute_text, compute_value
from planner.report.floor_text import floor_text
from planner.report.plan_table import plan_object, plan_table
from planner.report.text_columns import hanging
from planner.runner.dry_run import Forecast
from planner.runner.start import Start
from planner.wording.event_text import text_of

_WRITTEN = "run.json, status.json, jobs, drivers, generations, ledger, manifests, held, checkpoints, ray"
NOTHING_DONE = "dry run: nothing was started, nothing was written"
NOTHING_KEPT = "dry run: nothing was started, nothing was kept"


def dry_run_text(start: Start, ahead: Forecast, width: int | None = None) -> list[str]:
    """Return the start as lines of at most `width` columns, or None for whole lines."""
    job = start.job
    every = job.checkpoint.every
    pace = "automatic interval (checkpoint.every: auto)" if every == "auto" else f"every {every}"
    facts = [
        ("cluster", ahead.cluster),
        *([("", ahead.waits)] if ahead.waits else []),
        *_labelled("floor", list(filter(None, [floor_text(job.workers)]))),
        *([("warning", start.warning)] if start.warning else []),
        *(("warning", text) for text in start.passed_over),
        ("steps", f"{_steps(start)}, {counted(job.batch.global_batch, 'sample')} each"),
        *_labelled("batch", _by_length(job)),
        *([("after", job.after.whole_text)] if job.after else []),
        *(("changed", change) for change in start.changes),
        *(("length", text_of(event)) for event in conversions(job, start.num_samples)),
        *_labelled("data", start.mixture),
        *_labelled("eval", start.evaluation),
        ("compute", compute_text(ahead.compute)),
        *_labelled("gradient", _gradient(job, ahead)),
        ("commits", f"{pace}, files kept for the newest {job.checkpoint.keep}"),
        ("copies", _copies(job)),
        *_labelled("state", dry_run_lines(job, ahead)),
        ("writes", f"below {start.url}: {_WRITTEN}"),
        ("", "Small files were written there just now and removed: the storage can hold a run."),
        *(("tracking", _tracker_text(section, start.url)) for section in job.tracking),
        *(("note", note) for note in _notes(start)),
    ]
    return [
        start.opening,
        *(line for name, text in facts for line in hanging(f"{name:<10}", text, width)),
        "",
        *plan_table([ahead.plan], width, sample_tokens=job.data.sample_tokens(job.model)),
        "",
        NOTHING_KEPT,
    ]


def gradient_text(rule: GradientRule, num_parameters: int | None, *, is_own: bool) -> tuple[str, ...]:
    """Everything that planner does to a step's gradient, in order, from the backward passes to the optimizer step.

    Args:
        rule: what the trainer does (`planner.job.gradient`).
        num_parameters: that are trained. None if that is not known.
        is_own: whether the loss sums come from the user's own loop.
    """
    losses, clip = "Each loss sum of your loop" if is_own else "The loss sum", rule.clip_norm
    sums = "are summed in int64 fixed point" if rule.is_fixed_point else "are summed by FSDP"
    end = "the step is skipped" if rule.non_finite == "skip" else "the run stops before the optimizer's step"
    return (
        f"{losses} is divided by its count over the whole global batch.",
        f"Gradients {sums} over rounds and workers, never averaged.",
        placement_text(rule.element_bytes, num_parameters),
        f"If a gradient is not finite, {end} (train.non_finite: {rule.non_finite}).",
        "The gradient is not clipped (train.clip_norm: null)."
        if clip is None
        else f"A global norm above {clip:g} is scaled down to {clip:g} (train.clip_norm: {clip:g}).",
    )


def _gradient(job: Job, ahead: Forecast) -> tuple[str, ...]:
    num_parameters = None if isinstance(ahead.commits, NotKnown) else ahead.commits.shapes.num_parameters
    return gradient_text(gradient_rule(job), num_parameters, is_own=job.is_own)


def _by_length(job: Job) -> tuple[str, ...]:
    most, note = job.batch.max_tokens, auto_note(job)
    if most is None:
        return (note,) if note else ()
    tokens = "as many tokens as fit" if most == "auto" else f"{most:,} tokens"
    caps = f"{counted(job.batch.most_micro, 'sample')} and {tokens} (batch.max_tokens)"
    return (
        f"A micro-batch has at most {caps}, by the lengths of each step's samples.",
        *([note] if note else []),
        "The table below assumes samples of equal length: planner plan JOB --lengths shows what steps cost.",
    )


def _notes(start: Start) -> list[str]:
    """What was found on the way, could not be checked, or would take a while."""
    return [*(f"data: {note}" for note in start.data_notes), *start.notes]


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


def _steps(start: Start) -> str:
    """The steps that the run would train, as text. Both numbers are trained."""
    if not start.total_steps:
        return f"from {start.step} (the last one depends on the data)"
    return f"{start.step} to {start.total_steps - 1}"


def _tracker_text(section: Tracking, run: str) -> str:
    """`wandb, project my-project`: the kind and the settings that differ from their defaults."""
    values = section.model_dump(mode="json", exclude_defaults=True, exclude={"kind"})
    folders = {"tensorboard": f"below {run}/tensorboard", "jsonl": f"in {run}/tracking.jsonl"}
    place = "" if values else folders.get(section.kind, "")
    return ", ".join(filter(None, (section.kind, place, *(f"{key} {value}" for key, value in values.items()))))


def dry_run_json(start: Start, ahead: Forecast) -> str:
    """One JSON object: the start, with the sizes of a commit, and the plan as `planner plan --json`."""
    facts = {
        "run": start.url,
        "begins": start.begins,
        "after": start.job.after.whole_text if start.job.after else "",
        "step": start.step,
        "passed_over": start.passed_over,
        "total_steps": start.total_steps,
        "changes": start.changes,
        "conversions": tuple(map(text_of, conversions(start.job, start.num_samples))),
        "mixture": start.mixture,
        "evaluation": start.evaluation,
        "compute": compute_value(ahead.compute),
        "gradient": _gradient(start.job, ahead),
        "cluster": ahead.cluster,
        "waits": ahead.waits,
        "floor": floor_text(start.job.workers),
        "warning": start.warning,
        "plan": plan_object(ahead.plan, start.job.data.sample_tokens(start.job.model)),
        "available_bytes": ahead.available_bytes,
        "notes": _notes(start),
        **commit_keys(ahead.commits, ahead.plan.world_size, ahead.storage_gbps, ahead.node_workers),
    }
    return json.dumps(facts, indent=1)
