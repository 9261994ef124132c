"""Sentences about a run, for readers and as text alternatives of its pictures."""

from planner.base.text import counted, duration
from planner.story.curves import Curve
from planner.story.values import Change, RunHistory


def number(value: float) -> str:
    """A number for a sentence or a table: `10,240`, `2.5699`, `0.0003`."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.5g}"


def span(seconds: float) -> str:
    """A duration to three digits: `0.35 s`, `75 s`, `3 min 17 s`, `5 h 12 min`, `3 days 4 h`."""
    if seconds < 119.5:
        return duration(seconds)
    for large, small, limit in ((60, 1, 7200), (3600, 60, 4 * 86400)):
        if seconds < limit:
            whole, rest = divmod(round(seconds / small), large // small)
            return f"{whole} {_UNITS[large]} {rest} {_UNITS[small]}"
    whole, rest = divmod(round(seconds / 3600), 24)
    return f"{whole} days {rest} h"


_UNITS = {1: "s", 60: "min", 3600: "h"}


def capitalized(text: str) -> str:
    """A text with a capital letter."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """A message as a sentence: with a capital letter and a full stop."""
    text = capitalized(text)
    return text if text.endswith((".", "!", "?", "...")) else f"{text}."


def many(count: int, thing: str) -> str:
    """`1 worker`, `10,240 samples`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def spread(story: RunHistory) -> str:
    """`4`, or `3 to 5`: the numbers of workers that did steps."""
    counts = [phase.workers for phase in story.phases]
    return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def batches(story: RunHistory) -> str:
    """`64`, or `64, then 128`."""
    return ", then ".join(number(batch) for batch in story.global_batches)


def summary(story: RunHistory) -> str:
    """What happened, in some sentences."""
    if not story.phases:
        return "No optimizer step is on record yet."
    done = f"{story.end.step:,} of {many(story.end.total_steps, 'optimizer step')}"
    text = [f"The run did {done} with a global batch of {batches(story)} samples: {many(story.samples, 'sample')}."]
    text.append(_workers(story))
    if story.undone_steps:
        text.append(
            f"Failures undid {many(story.undone_steps, 'step')} ({many(story.undone_samples, 'sample')}). "
            "They were done again and count once."
        )
    else:
        text.append("No step was undone.")
    times = story.end.times
    if times.total_s > 0:
        text.append(f"It took {span(times.total_s)}, and {times.trained_s / times.total_s:.0%} of that trained.")
    return " ".join(text)


def _workers(story: RunHistory) -> str:
    first = story.phases[0].workers
    resizes = [change for change in story.changes if change.before != change.after]
    restarts = len(story.changes) - len(resizes)
    if not story.changes:
        return f"{many(first, 'worker')} did all of them."
    parts = [many(len(resizes), "resize")] if resizes else []
    parts += [f"{many(restarts, 'restart')} at the same size"] if restarts else []
    return f"It began with {many(first, 'worker')} and went through {' and '.join(parts)} ({spread(story)} workers)."


def change_words(change: Change) -> str:
    """`preemption notice: 4 -> 3 workers`."""
    size = f"{change.before} -> {change.after}" if change.before != change.after else f"{change.after}"
    again = f", {many(change.again, 'step')} done again" if change.again else ""
    memory = ", from memory" if change.from_memory else ""
    return f"{cause_words(change)}: {size} workers{memory}{again}"


def cause_words(change: Change) -> str:
    """Why one generation ended and the next one began: `1 worker joins`."""
    if change.cause == "workers join":
        return f"{counted(count := change.after - change.before, 'worker')} {'joins' if count == 1 else 'join'}"
    if change.cause == "workers leave":
        return f"{counted(count := change.before - change.after, 'worker')} {'leaves' if count == 1 else 'leave'}"
    return {"notice": "preemption notice", "another driver": "resumed by another driver"}.get(
        change.cause, change.cause
    )


def timeline_words(story: RunHistory) -> str:
    """The text alternative of the timeline."""
    phases = story.phases[:12]
    levels = "; ".join(
        f"{many(phase.workers, 'worker')} from step {phase.first_step:,} to {phase.end_step:,}" for phase in phases
    )
    more = f"; and {len(story.phases) - 12} more" if len(story.phases) > 12 else ""
    samples = {value for phase in story.phases for value in (*phase.batch.low, *phase.batch.high)}
    flat = f"stays at {number(samples.pop())} samples in every step" if len(samples) == 1 else "changes"
    return f"Workers over time, above the global batch. {levels}{more}. The global batch {flat}."


def curve_words(name: str, curve: Curve, where: str = "step") -> str:
    """The text alternative of a curve."""
    if not curve.x:
        return ""
    return (
        f"{name}: {number(_rounded(curve.y[0]))} at {where} {number(curve.x[0])}, {number(_rounded(curve.y[-1]))} at "
        f"{where} {number(curve.x[-1])}, between {number(_rounded(min(curve.low)))} and "
        f"{number(_rounded(max(curve.high)))}."
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
