"""The section that compares several runs."""

from collections.abc import Mapping, Sequence

from planner.provenance.stage import stage_of
from planner.report.page.html import Drawing, Html, element, joined, picture, table
from planner.report.page.run_values import ReportedRun
from planner.report.page.sentences import curve_words, number, span, spread
from planner.report.page.tables import curves_table
from planner.story.curves import Curve
from planner.story.values import RunHistory

KEY = "compared"
# Field of the story -> heading, what x is, caption.
_CURVES = {
    "loss": (
        "Loss by step",
        "step",
        "Each run has its own colour and dashes. Where lines lie on each other, the losses agree.",
    ),
    "held_out": ("Held-out loss by step", "step", ""),
    "loss_by_samples": ("Loss by samples", "samples", ""),
    "loss_by_time": ("Loss by time", "second", "Time includes starts, pauses and commits."),
    "speed": (
        "Samples per second by step",
        "step",
        "The mean of each generation, without commits, evaluations and pauses.",
    ),
}


def overlay_section(runs: Sequence[ReportedRun], drawings: Mapping[str, Drawing]) -> Html:
    """A table of all runs, and pictures with all of them."""
    parts = [element("h2", f"{len(runs)} runs compared", id=KEY), _comparison(runs)]
    for name, drawing in drawings.items():
        heading, where, caption = _CURVES[name]
        curves = {run.label: curve for run in runs if (curve := getattr(run.story, name)).x}
        words = " ".join(curve_words(label, curve, where) for label, curve in curves.items())
        data = curves_table(where, curves, heading)
        parts += [element("h3", heading), picture(drawing, words, caption, data)]
    return element("section", *parts, aria_labelledby=KEY)


def _comparison(runs: Sequence[ReportedRun]) -> Html:
    """A column per run, so that a phone has room for some."""
    step = common_step([run.story for run in runs])
    columns = [_column(run, step) for run in runs]
    names = [name.format(step=f"{step:,}") for name in _ROWS]
    note = (
        "Samples/s: all samples by the seconds of training. Loss: that of one step, or the mean of some steps around "
        "it on a long run."
    )
    rows = [row for row in zip(names, *columns, strict=True) if any(row[1:])]
    made = table(["", *(run.label for run in runs)], rows, name="Runs compared")
    return joined([made, element("p", note, class_="note")])


_ROWS = (
    "state", "after", "steps", "planned", "workers", "changes", "steps undone", "loss at step {step}", "held-out loss",
    "wall time", "trained", "samples/s", "audit",
)  # fmt: skip


def _column(run: ReportedRun, step: int) -> list[str]:
    story, end, times = run.story, run.story.end, run.story.end.times
    verdict = "not audited" if run.audit is None else "clean" if run.audit.clean else "NOT CLEAN"
    began = stage_of(end.header.facts) if end.header else None
    first = [run.detail.summary.state, began.text if began else ""]
    if not story.phases:
        return [*first, "0", *[""] * (len(_ROWS) - 4), verdict]
    return [
        *first,
        f"{end.step:,}",
        f"{end.total_steps:,}",
        spread(story),
        str(len(story.changes)),
        str(story.undone_steps),
        f"{value_at(story.loss, step):.4g}",
        f"{story.held_out.y[-1]:.4g}" if story.held_out.x else "",
        span(times.total_s),
        f"{times.trained_s / max(times.total_s, 1e-9):.0%}",
        number(float(f"{story.samples / max(times.trained_s, 1e-9):.4g}")),
        verdict,
    ]


def common_step(stories: Sequence[RunHistory]) -> int:
    """The last step that all runs with a step have done."""
    return min((story.end.step for story in stories if story.phases), default=0)


def value_at(curve: Curve, x: float) -> float:
    """The value of the point nearest to x."""
    return curve.y[min(range(len(curve.x)), key=lambda at: abs(curve.x[at] - x))]
