"""Curves by step: loss, speed, commits, memory. A band shows the extremes where a point stands for several steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from planner.pictures.canvas import COLOURS, DASHES, MARKERS, Size, figure, mark_times, plain
from planner.story.curves import Curve

# A loss that falls by more than this factor is drawn on a logarithmic axis.
_WIDE_RANGE = 30.0
_MOST_NARROW, _MOST_WIDE = 150, 300  # points across the picture
_MOST_CHANGES = 200
_MOST_MARKERS = 60
_STEPS = [1, 2, 2.5, 5, 10]  # between two ticks, times a power of ten


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve of a panel."""

    label: str
    curve: Curve
    number: int = 0
    """chooses colour, dashes and marker"""
    is_points: bool = False
    """points with a thin line between them, such as evaluations"""
    is_reference: bool = False
    """something to compare with: dashed, in the colour of text"""
    is_solid: bool = False
    """without dashes, whatever its number"""
    is_thin: bool = False
    """in the background of another curve"""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    series: tuple[Series, ...]
    unit: str = ""
    """`percent`, `log` or empty"""
    from_zero: bool = False


def draw_lines(
    panels: Sequence[Panel], size: Size, x_label: str, changes: Sequence[float] = (), columns: int = 1
) -> Figure:
    """Panels with one kind of x axis.

    Args:
        panels: at least one.
        size: of the picture.
        x_label: of the axis below.
        changes: where the number of workers changed.
        columns: panels side by side, on a wide picture.
    """
    columns = 1 if size.is_narrow else min(columns, len(panels))
    rows = -(-len(panels) // columns)
    height_of_one = (215 if size.is_narrow else 300) if len(panels) == 1 else (165 if size.is_narrow else 190)
    made = figure(size, rows * height_of_one + size.font * 2)
    grid = made.subplots(rows, columns, squeeze=False)
    all_axes = [axes for row in grid for axes in row]
    for axes, panel in zip(all_axes, panels, strict=False):
        _draw_panel(axes, panel, size, changes, _MOST_NARROW if size.is_narrow else _MOST_WIDE // columns)
        axes.set_xlabel(x_label)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    made.tight_layout(pad=0.4, h_pad=1.2, w_pad=2.0)
    return made


def _draw_panel(axes: Axes, panel: Panel, size: Size, changes: Sequence[float], most: int) -> None:
    for series in panel.series:
        _draw_series(axes, series, most)
    mark_times(axes, list(changes)[-_MOST_CHANGES:])
    pad = 8.0
    if len(panel.series) > 1:
        columns = 1 if size.is_narrow and any(len(series.label) > 16 for series in panel.series) else 2
        columns = columns if size.is_narrow else 4
        rows = -(-len(panel.series) // columns)
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0, borderpad=0.2, handlelength=2.6,
            columnspacing=1.4, labelspacing=0.3,
        )  # fmt: skip
        pad = 8 + rows * size.font * 1.5
    if panel.title:
        axes.set_title(plain(panel.title), pad=pad)
    _set_axes(axes, panel)


def _set_axes(axes: Axes, panel: Panel) -> None:
    lows = [value for series in panel.series for value in series.curve.low]
    highs = [value for series in panel.series for value in series.curve.high]
    if panel.unit == "log" and min(lows) > 0 and max(highs) / min(lows) > _WIDE_RANGE:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _at: f"{value:g}"))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=_STEPS))
        axes.yaxis.set_major_formatter(_formatter(panel.unit))
    if panel.from_zero:
        axes.set_ylim(0, max(highs, default=1.0) * 1.08 or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, steps=_STEPS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _at: short(value)))
    axes.margins(x=0.02)


def _formatter(unit: str) -> FuncFormatter | PercentFormatter:
    if unit == "percent":
        return PercentFormatter(xmax=1.0)
    return FuncFormatter(lambda value, _at: short(value))


def short(value: float) -> str:
    """A number for an axis: `0.25`, `1500`, `20k`, `3M`, `1e-05`."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scale = 1e3 if letter == "k" else limit
            return f"{value / scale:.4g}{letter}"
    return f"{value:.4g}"


def _draw_series(axes: Axes, series: Series, most: int) -> None:
    curve = series.curve.thinned(most)
    colour = COLOURS["text"] if series.is_reference else COLOURS[f"series{series.number % 8}"]
    if not curve.is_exact and not series.is_reference:
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.22, linewidth=0, zorder=2)
    style: dict[str, Any] = {"color": colour, "label": plain(series.label), "zorder": 4 if series.is_reference else 3}
    if len(curve.x) == 1 or (series.is_points and len(curve.x) <= _MOST_MARKERS):
        style |= {"marker": MARKERS[series.number % 8], "markersize": 6, "linewidth": 1}
    elif series.is_reference:
        style |= {"linestyle": (0, (5, 3)), "linewidth": 1.6}
    elif (dashes := DASHES[series.number % 8]) and not series.is_solid:
        style |= {"linestyle": (0, dashes)}
    if series.is_thin:
        style |= {"linewidth": 1, "alpha": 0.75}
    axes.plot(curve.x, [value if isfinite(value) else float("nan") for value in curve.y], **style)
