"""The tables below the pictures. Each has a bounded number of rows."""

from collections.abc import Mapping, Sequence

from planner.report.page.html import Html, table
from planner.report.page.sentences import number, span
from planner.report.plan_table import BY_LENGTH, split_text
from planner.story.curves import Curve
from planner.story.values import RunHistory

MOST_ROWS = 40
MOST_PHASES = 200


def curves_table(x_name: str, curves: Mapping[str, Curve], name: str) -> Html:
    """Some rows of curves, each value that of the curve's point at or before the row's x."""
    known = {label: curve for label, curve in curves.items() if curve.x}
    longest = max(known.values(), key=lambda curve: len(curve.x))
    thin = _every(longest.x)
    rows = [[number(round(x, 1)), *(_at(curve, x) for curve in known.values())] for x in thin]
    return table([x_name, *known], rows, name=name, left=())


def _every(values: Sequence[float]) -> list[float]:
    """At most `MOST_ROWS` of the values, the first and the last among them."""
    if len(values) <= MOST_ROWS:
        return list(values)
    return [values[round(at * (len(values) - 1) / (MOST_ROWS - 1))] for at in range(MOST_ROWS)]


def _at(curve: Curve, x: float) -> str:
    """The value of the point nearest to x. Empty if the curve has none near it."""
    at = min(range(len(curve.x)), key=lambda index: abs(curve.x[index] - x))
    reach = (curve.x[-1] - curve.x[0]) / max(len(curve.x) - 1, 1)
    return f"{curve.y[at]:.5g}" if abs(curve.x[at] - x) <= max(reach / 2, 0.5) else ""


def phase_rows(story: RunHistory) -> Html:
    """A row per generation that did a step."""
    recomputed = {change.generation: change.again for change in story.changes}
    rows = [
        (
            str(phase.generation),
            str(phase.workers),
            BY_LENGTH if phase.by_length else split_text(phase.shares),
            f"{phase.rounds:.1f}".removesuffix(".0") if phase.rounds else "-",
            f"{phase.efficiency:.1%}" if phase.efficiency else "-",
            f"[{phase.first_step}, {phase.end_step})",
            str(recomputed.get(phase.generation, 0)),
            f"{phase.samples_per_s:.1f}",
            f"{phase.samples_per_s / max(story.best_worker[0] * phase.workers, 1e-9):.0%}",
            span(phase.end_s - phase.start_s),
        )
        for phase in story.phases[-MOST_PHASES:]
    ]
    header = (
        "generation", "workers", "split", "rounds", "efficiency", "steps", "recomputed",
        "samples/s", "of ideal", "time",
    )  # fmt: skip
    return table(header, rows, name="Generations", left=(2, 5))


def parts_table(parts: Mapping[str, float], name: str) -> Html:
    """Seconds and shares of the parts of a whole."""
    total_s = sum(parts.values()) or 1.0
    rows = [(label, f"{seconds:.1f}", f"{seconds / total_s:.1%}") for label, seconds in parts.items()]
    return table(("", "seconds", "share"), rows, name=name)
