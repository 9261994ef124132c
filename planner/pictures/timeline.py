"""Workers over time, above the global batch of every step. Both have one axis of time."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from planner.pictures.canvas import COLOURS, Size, figure, inset, mark_times
from planner.report.plan_table import BY_LENGTH, split_text
from planner.story.values import Change, Phase

MOST_PHASES = 1000
"""phases that a picture shows: the newest ones"""
_TITLES = (
    "Workers, and the samples that each computes per step",
    "Global batch: samples of all workers per optimizer step",
)
_NARROW_TITLES = ("Workers, and the samples of each", "Global batch: samples per step")
_MOST_BANDS = 400  # workers of all phases together that get a band each
_MOST_NAME_ROWS, _MOST_NUMBER_ROWS = 5, 2
_ROW = 1.35  # between two rows of names, in font sizes
_CHARACTER, _BOLD_CHARACTER = 0.58, 0.66  # the width of a character, in font sizes


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit for an axis of so many seconds, and its seconds."""
    if seconds < 180:
        return "seconds", 1.0
    if seconds < 3 * 3600:
        return "minutes", 60.0
    return ("hours", 3600.0) if seconds < 4 * 86400 else ("days", 86400.0)


def draw_timeline(
    phases: Sequence[Phase],
    changes: Sequence[Change],
    size: Size,
    x_label: str,
    label: Callable[[int, Change], str] = lambda number, _change: str(number),
) -> Figure:
    """Workers above, the global batch below, over the same time.

    Args:
        phases: oldest first, at least one.
        changes: between the phases.
        size: of the picture.
        x_label: of the axis of time. `UNIT` stands for its unit.
        label: the text above a change, from its number and the change.
    """
    made = figure(size, 30.5 * size.font)
    above, below = made.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    numbered = [(at, change) for at, change in enumerate(changes, start=1)]
    shown, numbered = phases[-MOST_PHASES:], numbered[-MOST_PHASES + 1 :]
    unit, second = time_unit(shown[-1].end_s - shown[0].start_s)
    _draw_workers(above, shown, second, size)
    _draw_batch(below, shown, second)
    below.set_xlabel(x_label.replace("UNIT", unit))
    below.margins(x=0.01)
    if len(shown) == len(phases):
        below.set_xlim(left=0)
    for axes in (above, below):
        axes.tick_params(axis="both", length=0)
        axes.grid(visible=False)
    inset(made, left=size.font * 2.6, right=6, top=44, bottom=size.font * 3.4, hspace=0.42)
    rows = _draw_changes((above, below), numbered, second, size, label)
    names = _TITLES if len(_TITLES[1]) * size.font * _BOLD_CHARACTER < size.width else _NARROW_TITLES
    above.set_title(names[0], pad=6 + size.font * _ROW * rows)
    below.set_title(names[1])
    inset(made, left=size.font * 2.6, right=6, top=26 + size.font * _ROW * rows, bottom=size.font * 3.4, hspace=0.42)
    return made


def _draw_workers(axes: Axes, phases: Sequence[Phase], second: float, size: Size) -> None:
    """A level for each phase, with its number and its split. A dotted line stands where no worker trains."""
    colour = COLOURS["workers"]
    gap = float("nan")
    solid_x = [at / second for phase in phases for at in (phase.start_s, phase.end_s, gap)]
    solid_y = [float(count) for phase in phases for count in (phase.workers, phase.workers, gap)]
    axes.plot(solid_x, solid_y, color=colour, linewidth=5, solid_capstyle="butt")
    _dot_pauses(axes, phases, second, [(phase.workers, phase.workers) for phase in phases], colour)
    whole_s = max(phases[-1].end_s - phases[0].start_s, 1e-9)
    for phase in phases:
        _label_phase(axes, phase, (phase.end_s - phase.start_s) / whole_s * (size.width - 45), second, size)
    most = max(phase.workers for phase in phases)
    axes.set_ylim(0, most * 1.3)
    axes.set_yticks([0, most])


def _dot_pauses(
    axes: Axes, phases: Sequence[Phase], second: float, levels: Sequence[tuple[float, float]], colour: str
) -> None:
    """A dotted line between phases, where no step is done. `levels` are the first and the last value of each phase."""
    gap = float("nan")
    x = [at / second for before, after in pairwise(phases) for at in (before.end_s, after.start_s, gap)]
    y = [float(level) for (_, before), (after, _) in pairwise(levels) for level in (before, after, gap)]
    axes.plot(x, y, color=colour, linewidth=1.5, linestyle=":")


def _label_phase(axes: Axes, phase: Phase, room: float, second: float, size: Size) -> None:
    """Its workers above the line and its split below it, as far as `room` (pixels) has room for them."""
    middle = ((phase.start_s + phase.end_s) / 2 / second, phase.workers)
    number = str(phase.workers)
    large = size.font + 3
    if len(number) * large * _CHARACTER <= room:
        axes.annotate(
            number,
            middle,
            (0, 5),
            textcoords="offset points",
            ha="center",
            color=COLOURS["workers"],
            size=large,
            weight="bold",
        )
    small = size.font - 1
    characters = room / (small * _CHARACTER)
    by_length = BY_LENGTH if len(BY_LENGTH) <= characters else ""
    if lines := by_length if phase.by_length else fitted(phase.shares, characters):
        axes.annotate(lines, middle, (0, -6), textcoords="offset points", ha="center", va="top", size=small)


def fitted(shares: Sequence[tuple[int, int]], characters: float) -> str:
    """A split in as many lines as its width needs. Empty if there is no room for its longest line."""
    if len(split := split_text(shares)) <= characters:
        return split
    lines = [split_text([share]) for share in shares]
    lines = [*(f"{line} +" for line in lines[:-1]), lines[-1]]
    return "\n".join(lines) if max(map(len, lines)) <= characters and len(lines) <= 3 else ""


def _draw_batch(axes: Axes, phases: Sequence[Phase], second: float) -> None:
    """The samples of each step as one line, above bands that show each worker's share."""
    bands = [band for phase in phases for band in _bands(phase, second, sum(p.workers for p in phases))]
    axes.add_collection(
        PolyCollection(
            bands, facecolors=COLOURS["workers"], alpha=0.35, edgecolors=COLOURS["page"], linewidths=1.2, zorder=1
        )
    )
    gap = float("nan")
    line_x, line_y = [], []
    for phase in phases:
        times = [phase.start_s, *phase.batch.x[:-1], phase.end_s] if phase.batch.x else []
        line_x += [*(at / second for at in times), gap]
        line_y += [*(phase.batch.y[:1] + phase.batch.y), gap]
    axes.plot(line_x, line_y, color=COLOURS["text"], linewidth=2.5, zorder=3)
    _dot_pauses(axes, phases, second, [(phase.batch.y[0], phase.batch.y[-1]) for phase in phases], COLOURS["text"])
    top = max(max(phase.batch.high) for phase in phases)
    axes.set_ylim(0, top * 1.15)
    axes.set_yticks([0, top])


def _bands(phase: Phase, second: float, workers: int) -> list[list[tuple[float, float]]]:
    """One rectangle per worker. One for all, if so many would not be told apart."""
    each = [samples for count, samples in phase.shares for _ in range(count)]
    heights = each if workers <= _MOST_BANDS else [sum(each)]
    left, right = phase.start_s / second, phase.end_s / second
    return [
        [(left, low), (right, low), (right, low + height), (left, low + height)]
        for low, height in zip(accumulate(heights[:-1], initial=0), heights, strict=True)
    ]


def _draw_changes(
    pair: tuple[Axes, Axes],
    changes: Sequence[tuple[int, Change]],
    second: float,
    size: Size,
    label: Callable[[int, Change], str],
) -> int:
    """A dashed line through both panels for each change, with its label above. Return the rows that the labels take."""
    above = pair[0]
    box = above.get_window_extent()
    low, high = above.get_xlim()
    taken: list[float] = []  # per row, where its last label ends, in pixels
    for axes in pair:
        mark_times(axes, [change.at_s / second for _, change in changes])
    for number, change in changes:
        at = change.at_s / second
        text = label(number, change)
        width = len(text) * size.font * _CHARACTER
        pixel = box.x0 + (at - low) / (high - low) * box.width
        left = min(pixel - size.font * 0.3, box.x1 - width)
        row = next((row for row, end in enumerate(taken) if end + 4 < left), len(taken))
        if row >= (_MOST_NUMBER_ROWS if text.isdigit() else _MOST_NAME_ROWS):
            continue  # the list below the picture has it
        taken[row : row + 1] = [left + width]
        above.annotate(
            text,
            (at, 1),
            (left - pixel, 3 + size.font * _ROW * row),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            color=COLOURS["event"],
            weight="bold" if text.isdigit() else "normal",
        )
    return max(len(taken), 1) if changes else 0
