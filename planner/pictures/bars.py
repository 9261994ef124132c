"""Parts of a whole: one stacked bar, and a bar for each part with its name and its share in words."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from planner.pictures.canvas import COLOURS, Size, figure
from planner.report.page.sentences import span

HATCHES = ("", "//", "||", "\\\\", "xx", "--", "++", "/")  # no dots: each would be a path of its own


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a whole."""

    label: str
    seconds: float
    number: int
    """chooses colour and pattern"""


def draw_bars(parts: Sequence[Part], size: Size, title: str) -> Figure:
    """A stacked bar of all parts, above a bar for each.

    Args:
        parts: at least one, none of them negative.
        size: of the picture.
        title: what the whole is.
    """
    row = size.font * 2.5
    made = figure(size, row * (len(parts) + 1.5) + size.font * 2)
    axes = made.subplots()
    total_s = sum(part.seconds for part in parts) or 1.0
    left = 0.0
    for part in parts:
        _bar(axes, 0, left, part, height=0.62)
        left += part.seconds
    for at, part in enumerate(parts, start=1):
        _bar(axes, at + 0.3, 0, part, height=0.34)
        axes.annotate(
            f"{part.label}: {span(part.seconds)} ({part.seconds / total_s:.1%})",
            (0, at + 0.3),
            (0, size.font * 0.62),
            textcoords="offset points",
            va="bottom",
        )
    axes.set_ylim(len(parts) + 0.6, -0.45)
    axes.set_xlim(0, total_s)
    axes.set_axis_off()
    axes.set_title(f"{title}: {span(total_s)}")
    made.tight_layout(pad=0.3)
    return made


def _bar(axes: object, at: float, left: float, part: Part, height: float) -> None:
    axes.barh(  # type: ignore[attr-defined]
        at,
        part.seconds,
        left=left,
        height=height,
        color=COLOURS[f"series{part.number % 8}"],
        edgecolor=COLOURS["page"],
        linewidth=1,
        hatch=HATCHES[part.number % 8],
    )
