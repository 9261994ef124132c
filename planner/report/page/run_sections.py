"""The sections of the page about one run, in their order."""

from collections.abc import Mapping

from planner.report.page.html import Html, element, folded, paragraph, picture, tiles
from planner.report.page.parts import memory_curve, step_parts, time_parts
from planner.report.page.run_values import ReportedRun
from planner.report.page.sentences import (
    batches,
    capitalized,
    change_words,
    curve_words,
    many,
    number,
    sentence,
    span,
    spread,
    summary,
    timeline_words,
)
from planner.report.page.tables import curves_table, parts_table, phase_rows
from planner.report.page.trust import trust_section
from planner.report.spot_text import spot_text
from planner.story.values import Change, Commits, RunHistory

_MOST_CHANGES = 100
_MOST_UNRECORDED = 20
_MOST_OPEN = 12  # changes in a list that is not folded


def run_section(run: ReportedRun, key: str) -> Html:
    """Everything about one run. `key` is the id of its heading."""
    story, summary_line = run.story, run.detail.summary
    problem = f"{summary_line.state}: {summary_line.reason}" if summary_line.reason else summary_line.state
    kind = "bad" if summary_line.state == "broken" else "good" if summary_line.state == "finished" else "muted"
    parts = [
        element("h2", run.label, id=key),
        paragraph(element("span", problem, class_=f"state {kind}"), element("code", story.run)),
        paragraph(summary(story)),
        *([paragraph(f"It {spot_text(run.spot, story.run)}.")] if run.spot else []),
        _tiles(run),
        *(_pictures(run) if story.phases else []),
        trust_section(run),
    ]
    return element("section", *parts, aria_labelledby=key)


def _tiles(run: ReportedRun) -> Html:
    story = run.story
    if not story.phases:
        return Html()
    times = story.end.times
    values = [
        ("steps", f"{story.end.step:,}", f"of {story.end.total_steps:,}"),
        ("workers", spread(story), f"{len(story.changes)} changes"),
        ("global batch", batches(story), "samples per step"),
        ("loss", f"{story.loss.y[-1]:.4g}", f"from {story.loss.y[0]:.4g}"),
    ]
    if len(story.held_out.x) > 1:
        values.append(("held-out loss", f"{story.held_out.y[-1]:.4g}", f"from {story.held_out.y[0]:.4g}"))
    values.append(("wall time", span(times.total_s), f"{times.trained_s / max(times.total_s, 1e-9):.0%} trained"))
    values.append(("samples/s", number(_rate(story.samples, times.trained_s)), "while it trained"))
    if story.measured.tokens_per_s.x:
        values.append(("tokens/s", number(_rate(story.measured.mean_tokens_per_s, 1.0)), "while it trained"))
    if story.measured.mfu.x:
        values.append(("MFU", f"{story.measured.mean_mfu:.1%}", "while it trained"))
    return tiles(values)


def _rate(amount: float, seconds: float) -> float:
    return float(f"{amount / max(seconds, 1e-9):.4g}")


def _pictures(run: ReportedRun) -> list[Html]:
    makers = {
        "timeline": _timeline,
        "loss": _loss,
        "speed": _speed,
        "measured": _measured,
        "times": _times,
        "step": _step,
        "commits": _commits,
        "others": _others,
    }
    # The section of commits also says that there are none.
    shown = {*run.drawings, "commits"}
    return [section for name, make in makers.items() if name in shown for section in make(run)]


def _drawn(run: ReportedRun, name: str, heading: str, words: str, caption: str, data: Html) -> list[Html]:
    """A heading, and the picture of that name below it (see `planner.report.page.html.picture`)."""
    return [element("h3", heading), picture(run.drawings[name], words, caption, data)]


def _timeline(run: ReportedRun) -> list[Html]:
    story = run.story
    caption = (
        "Above: the number of workers, and how many samples each of them computes per step. Below: the same samples "
        "stacked, one band per worker. The thick line is what entered each step. Dotted: no step was done. Numbers "
        "above dashed lines are those of the list below."
    )
    if any(phase.by_length for phase in story.phases):
        caption += " By length: each step has a split of its own, and bands are those of samples of equal length."
    drawn = _drawn(run, "timeline", "Workers and global batch", timeline_words(story), caption, phase_rows(story))
    return [*drawn, *_changes(story)]


def _changes(story: RunHistory) -> list[Html]:
    shown = story.changes[-_MOST_CHANGES:]
    first = len(story.changes) - len(shown)
    items = [_change(first + at, change) for at, change in enumerate(shown, start=1)]
    left_out = [paragraph(f"The {many(first, 'change')} before these are left out.")] if first else []
    listed = element("ol", *items, class_="events")
    if len(items) > _MOST_OPEN:
        listed = folded(f"All changes and their reasons ({len(items)})", listed)
    made = [element("h4", "Changes and their reasons"), *left_out, listed]
    events = [
        element(
            "li",
            element("span"),
            element(
                "p",
                element("span", f"{span(event.time_s)}, generation {event.generation}, step {event.step}: ",
                        class_="when"),
                event.text,
            ),
        )
        for event in story.events
    ]  # fmt: skip
    log = [folded(f"All messages on record ({len(events)})", element("ol", *events, class_="events"))] if events else []
    return [*(made if items else []), *log]


def _change(at: int, change: Change) -> Html:
    pause_s = change.resumed_s - change.at_s
    when = f"{span(change.at_s)} after the start, generation {change.generation}, step {change.step:,}"
    body = [
        element("p", element("strong", capitalized(change_words(change)))),
        element("p", f"{when}. No step for {span(pause_s)}.", class_="when"),
        *(element("p", sentence(reason)) for reason in change.reasons),
    ]
    return element("li", element("span", str(at), class_="mark"), element("div", *body))


def _marks(story: RunHistory) -> str:
    """What the dashed lines of a picture mean, if it has some."""
    return "Orange dashes: the number of workers changed, or they restarted." if story.changes else ""


def _loss(run: ReportedRun) -> list[Html]:
    story = run.story
    words = [curve_words("Training loss", story.loss), curve_words("Held-out loss", story.held_out)]
    band = "" if story.loss.is_exact else " The band is the least and the largest loss of the steps of one point."
    caption = f"Mean loss of each global batch, by step. Steps that were undone are not shown. {_marks(story)}{band}"
    data = curves_table("step", {"training": story.loss, "held out": story.held_out}, "Loss")
    return _drawn(run, "loss", "Loss", " ".join(filter(None, words)), caption, data)


def _others(run: ReportedRun) -> list[Html]:
    curves = run.story.curves
    words = " ".join(curve_words(name, curve) for name, curve in curves.items())
    data = curves_table("step", curves, "Other values")
    return _drawn(run, "others", "Gradient norm, learning rate and metrics", words, _marks(run.story), data)


def _speed(run: ReportedRun) -> list[Html]:
    story = run.story
    best, workers = story.best_worker
    reached = _rate(story.samples, sum(phase.busy_s for phase in story.phases))
    words = f"{curve_words('Samples per second', story.speed)} Over all steps: {number(reached)}."
    caption = (
        "Samples per second of steps, without commits, evaluations and pauses. Ideal: the fastest measured worker "
        f"({best:.1f} samples per second, mean of a generation of {workers}) times the number of workers. So uneven "
        f"splits and communication count as losses. {_marks(story)}"
    )
    data = curves_table("step", {"samples/s": story.speed}, "Speed")
    return _drawn(run, "speed", "Samples per second, against the ideal", words, caption, data)


def _measured(run: ReportedRun) -> list[Html]:
    known = run.story.measured
    unit, memory = memory_curve(known)
    curves = {"tokens/s": known.tokens_per_s, "MFU": known.mfu, f"peak memory ({unit})": memory}
    words = " ".join(filter(None, (curve_words(name, curve) for name, curve in curves.items())))
    mfu = "is model FLOPs per second as a fraction of the devices' peak" if known.mfu.x else "is not known here"
    caption = (
        f"Tokens are those that entered a forward pass, without padding. MFU {mfu}. Memory is the largest of any "
        "worker so far."
    )
    data = curves_table("step", curves, "Tokens, MFU and memory")
    return _drawn(run, "measured", "Tokens, utilization and memory", words, caption, data)


def _times(run: ReportedRun) -> list[Html]:
    times, parts = run.story.end.times, time_parts(run.story)
    again = f"Steps done again took {span(times.redone_s)}, which are in these figures." if times.redone_s else ""
    caption = (
        "Paused is the time before the first step of a generation, since the last record. Lost are steps whose work a "
        f"failure undid. {again}"
    )
    words, heading = f"{_shares(parts)} The whole is {span(times.total_s)}.", "Where the time went"
    return _drawn(run, "times", heading, words, caption, parts_table(parts, heading))


def _step(run: ReportedRun) -> list[Html]:
    measured, parts = run.story.measured, step_parts(run.story)
    communication_s = measured.step_parts.get("communication", 0.0)
    share = communication_s / max(measured.seconds, 1e-9)
    caption = (
        f"Means over workers. Collectives took {span(communication_s)} ({share:.1%}). They overlap with the parts "
        "above, so they have no bar."
    )
    return _drawn(run, "step", "Inside a step", _shares(parts), caption, parts_table(parts, "Inside a step"))


def _shares(parts: Mapping[str, float]) -> str:
    """Every part's share, such as `Training 80.0%, committing 20.0%.`."""
    total_s = max(sum(parts.values()), 1e-9)
    return sentence(", ".join(f"{name} {seconds / total_s:.1%}" for name, seconds in parts.items() if seconds > 0))


def _commits(run: ReportedRun) -> list[Html]:
    story, commits = run.story, run.story.commits
    if "commits" not in run.drawings:
        return [element("h3", "Commits"), paragraph("No commit is on record.", _unrecorded(commits))]
    share = commits.seconds / max(story.end.times.total_s, 1e-9)
    writes = commits.durable_after.y
    durable = f" A commit was durable after {span(sum(writes) / len(writes))} on average." if writes else ""
    words = (
        f"{many(commits.number, 'commit')} paused training for {span(commits.seconds)} together, {share:.1%} of the "
        f"run's time, {span(commits.seconds / commits.number)} each.{durable} At most {span(commits.most_at_risk_s)} "
        "of steps were at risk: not durable yet."
    )
    interval = f"The job commits {run.detail.interval}." if run.detail.interval else ""
    caption = f"Work at risk is what a crash just before the commit was durable would have lost. {_marks(story)}"
    curves = {
        "seconds of pause": commits.cost,
        "seconds until durable": commits.durable_after,
        "seconds at risk": commits.at_risk,
    }
    drawn = picture(run.drawings["commits"], words, caption, curves_table("step", curves, "Commits"))
    return [element("h3", "Commits"), paragraph(words, _unrecorded(commits), interval), drawn]


def _unrecorded(commits: Commits) -> str:
    """Of durable commits that the ledger does not have. Empty if there are none."""
    if not commits.unrecorded:
        return ""
    steps = ", ".join(f"{step:,}" for step in commits.unrecorded[-_MOST_UNRECORDED:])
    which = f"step {steps} is" if len(commits.unrecorded) == 1 else f"steps {steps} are"
    return f"By manifests, {which} durable too, without a record (lost by a kill, or not written yet)."
