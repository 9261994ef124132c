"""A run as it goes, in lines of text: how it stands, and what has happened."""

from collections.abc import Mapping

from planner.base.text import counted
from planner.job.objective_registry import shown_metrics
from planner.plan import Plan
from planner.plan.by_length import ByLength
from planner.provenance.identity import recorded_plan
from planner.report.plan_table import plan_split
from planner.report.speed import Speed, commit_text
from planner.store.records import EvalRecord, EventRecord, GenerationRecord
from planner.story.run_story import News, RunStory


def news_text(news: News) -> str:
    """What has happened, in one line.

    Raises:
        PlanError: this version of planner does not know the layout of a new generation.
    """
    record = news.record
    if isinstance(record, EventRecord):
        return record.message
    if isinstance(record, GenerationRecord):
        return _generation_text(record, news.again)
    if isinstance(record, EvalRecord):
        losses = ", ".join([f"held-out loss {record.loss:.4f}", *metric_texts(record.metrics)])
        return f"step {record.step}: {losses}"
    return f"step {record.step}: the commit {commit_text(record.seconds, record.write_s)}"


def _generation_text(header: GenerationRecord, again: int) -> str:
    resumed = f"resumed from {'memory at' if header.parent_is_held else 'the commit of'} step {header.step}"
    begins = resumed if header.parent else "begins"
    line = (
        f"generation {header.generation} {begins}: {counted(header.world_size, 'worker')}, "
        f"{plan_text(recorded_plan(header))}, global batch {header.identity.global_batch}"
    )
    line += f", {counted(again, 'step')} to do again" if again else ""
    return "; ".join((line, *header.changed))


def metric_texts(metrics: Mapping[str, float]) -> list[str]:
    """Return the metrics that are shown, such as `margin 0.42` and `accuracy 0.91`."""
    return [f"{label} {metrics[name]:.2f}" for name, label in shown_metrics().items() if name in metrics]


def step_line(story: RunStory, held_step: int = 0) -> str:
    """The run in one line. `held_step` is the newest step in memory, by who asked the workers, or 0."""
    loss = "" if story.loss is None else "  ".join([f"loss {story.loss:.4f}", *metric_texts(story.metrics), ""])
    split = plan_split(story.plan) if story.plan else ""
    speed = "".join(f"{text}  " for text in speed_texts(story))
    return (
        f"step {story.step}/{story.total_steps}  {loss}{counted(story.world_size, 'worker')} ({split})  "
        f"{speed}{durable_text(story, held_step)}"
    )


def plan_text(plan: Plan | None) -> str:
    """How the batch is divided: `split 4 x 13 + 1 x 12, 2 rounds`. None is not known, or no plan yet."""
    if plan is None:
        return "split -, 0 rounds"
    more = " or more" if isinstance(plan, ByLength) else ""
    return f"split {plan_split(plan)}, {counted(plan.accumulation_steps, 'round')}{more}"


def durable_text(story: RunStory, held_step: int = 0) -> str:
    """`durable 120`, or `durable 120, held 130` if a later step is in memory."""
    held_step = max(held_step, story.held_step)
    is_ahead = story.committed_step < held_step <= story.step
    return f"durable {story.committed_step}{f', held {held_step}' if is_ahead else ''}"


def speed_texts(story: RunStory) -> list[str]:
    """Return what is known of the speed, such as `12.3 samples/s`, `4,096 tokens/s`, `MFU 41%` and `38.2 GiB`."""
    samples = [f"{story.samples_per_s:.1f} samples/s"] if story.samples_per_s else []
    return [*samples, *(Speed.of(story.measured).texts if story.measured else ())]
