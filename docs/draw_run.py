"""Draws a run: its workers over time, above the global batch of every step.

    python docs/draw_run.py runs/demo -o docs/images/demo

This writes `docs/images/demo-light.svg` and `docs/images/demo-dark.svg`. It reads the run's ledger. It needs
matplotlib: `pip install '.[dev]'`.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from planner.base.text import counted
from planner.errors import StoreError
from planner.provenance.identity import recorded_plan
from planner.report.plan_table import split_text
from planner.store.ledger import records_among, segment_name
from planner.store.records import CommitRecord, EvalRecord, EventRecord, GenerationRecord, Record, StepRecord
from planner.store.run_folder import RunFolder
from planner.store.storage import MAX_BLOB_BYTES, Storage

# Blue and orange by Okabe and Ito, which colour-blind people tell apart. Text and page are GitHub's.
THEMES = {
    "light": {"text": "#1f2328", "faint": "#8c959f", "workers": "#0072b2", "event": "#bc4c00", "page": "#ffffff"},
    "dark": {"text": "#e6edf3", "faint": "#7d8590", "workers": "#56b4e9", "event": "#e69f00", "page": "#0d1117"},
}
SIZE_INCHES = (5.8, 3.9)  # narrow, so that its text stays readable on a phone
ROW_POINTS = 12  # between two rows of names
CHARACTERS = 90  # of the small size across the picture, roughly


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One generation: a fixed number of workers, from its first step to its last."""

    workers: int
    shares: tuple[tuple[int, int], ...]
    """`(workers, samples each)`, larger shares first"""
    start_s: float
    """when its first step began, by the clock of `time.time`"""
    end_s: float
    """when its last step, commit or evaluation was done"""
    samples: tuple[int, ...]
    """that entered the forward pass, per step"""
    first_step: int
    messages: tuple[str, ...]

    @property
    def end_step(self) -> int:
        """One past its last step."""
        return self.first_step + len(self.samples)


def read_phases(run: RunFolder) -> list[Phase]:
    """Every generation that did a step, oldest first.

    Raises:
        StoreError: there is no run, or none of its generations did a step.
    """
    run.identity()
    contents = [run.storage.read(segment_name(number), MAX_BLOB_BYTES) for number in run.segments()]
    phases = [phase for content in contents if (phase := phase_of(records_among(content)))]
    if not phases:
        raise StoreError(f"{run.storage.url}: no step is on record yet. Draw the run later")
    return phases


def phase_of(records: Sequence[Record]) -> Phase | None:
    """A generation from its records. None if it did no step."""
    header, *others = records
    steps = [record for record in others if isinstance(record, StepRecord)]
    if not isinstance(header, GenerationRecord) or not steps:
        return None
    # The three follow one another: a step waits for the commit before it.
    busy_s = sum(record.seconds for record in others if isinstance(record, StepRecord | CommitRecord | EvalRecord))
    return Phase(
        workers=header.world_size,
        shares=recorded_plan(header).shares,
        start_s=header.time_s,
        end_s=header.time_s + busy_s,
        samples=tuple(step.samples for step in steps),
        first_step=header.step,
        messages=tuple(record.message for record in others if isinstance(record, EventRecord)),
    )


def cause(before: Phase, after: Phase) -> str:
    """What ended one phase and began the next, in a few words."""
    change = after.workers - before.workers
    again = before.end_step - after.first_step
    if any("lost" in message for message in after.messages):
        words = "node lost"
    elif change > 0:
        words = f"{counted(change, 'worker')} {'joins' if change == 1 else 'join'}"
    elif any("notice" in message for message in before.messages):
        words = "preemption notice"
    else:
        words = "restart"
    return f"{words}, {counted(again, 'step')} done again" if again else words


def draw(phases: Sequence[Phase], colours: dict[str, str]) -> Figure:
    """Workers above, the global batch below, over the same seconds."""
    figure = Figure(figsize=SIZE_INCHES)
    figure.subplots_adjust(left=0.05, right=0.99, bottom=0.12, top=0.86, hspace=0.28)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for axes in (above, below):
        axes.tick_params(length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    draw_workers(above, phases, colours)
    draw_batch(below, phases, colours)
    above.margins(x=0.01)
    draw_events((above, below), phases, colours)
    return figure


def draw_workers(axes: Axes, phases: Sequence[Phase], colours: dict[str, str]) -> None:
    """A level for each phase, with its number and its split. A dotted line stands where no worker trains."""
    zero_s, whole_s = phases[0].start_s, phases[-1].end_s - phases[0].start_s
    for phase in phases:
        span = (phase.start_s - zero_s, phase.end_s - zero_s)
        axes.plot(span, (phase.workers, phase.workers), color=colours["workers"], linewidth=4, solid_capstyle="butt")
        middle = (sum(span) / 2, phase.workers)
        style = {"textcoords": "offset points", "ha": "center"}
        axes.annotate(str(phase.workers), middle, (0, 4), color=colours["workers"], size=13, weight="bold", **style)
        split = fitted(split_text(phase.shares), (span[1] - span[0]) / whole_s)
        axes.annotate(split, middle, (0, -5), color=colours["text"], size=8, va="top", **style)
    for before, after in pairwise(phases):
        span = (before.end_s - zero_s, after.start_s - zero_s)
        axes.plot(span, (before.workers, after.workers), color=colours["workers"], linewidth=1.5, linestyle=":")
    most = max(phase.workers for phase in phases)
    axes.set_ylim(0, most * 1.25)
    axes.set_yticks([0])


def fitted(split: str, part: float) -> str:
    """A split in one line or more, as fits into a part of the picture's width. Empty if nothing does."""
    lines = split.replace(" + ", "\n+ ")
    for text in (split, lines):
        if max(map(len, text.split("\n"))) / CHARACTERS < part:
            return text
    return ""


def draw_batch(axes: Axes, phases: Sequence[Phase], colours: dict[str, str]) -> None:
    """The samples of each step as one line, above bands that show each worker's share."""
    zero_s = phases[0].start_s
    top = max(max(phase.samples) for phase in phases)
    for phase in phases:
        start_s, width_s = phase.start_s - zero_s, phase.end_s - phase.start_s
        each = [samples for workers, samples in phase.shares for _ in range(workers)]
        axes.bar(
            [start_s] * len(each),
            each,
            width_s,
            list(accumulate(each[:-1], initial=0)),
            align="edge",
            color=colours["workers"],
            alpha=0.4,
            edgecolor=colours["page"],
            linewidth=1,
        )
        seconds = [start_s + width_s * i / len(phase.samples) for i in range(len(phase.samples) + 1)]
        axes.step(seconds, [phase.samples[0], *phase.samples], color=colours["text"], linewidth=2.5)
    for before, after in pairwise(phases):
        span = (before.end_s - zero_s, after.start_s - zero_s)
        axes.plot(span, (before.samples[-1], after.samples[0]), color=colours["text"], linewidth=1.5, linestyle=":")
    axes.set_ylim(0, top * 1.15)
    axes.set_yticks([0, top])
    axes.set_xlabel("seconds of training")
    axes.set_title("global batch: samples of all workers per optimizer step", loc="left", weight="bold")


def draw_events(pair: Sequence[Axes], phases: Sequence[Phase], colours: dict[str, str]) -> None:
    """A dashed line through both panels for each event. Its name stands above, in as many rows as keep names apart."""
    above = pair[0]
    right = above.get_window_extent().x1
    taken: list[float] = []  # per row, where its last name ends, in pixels
    for before, after in pairwise(phases):
        at_s = before.end_s - phases[0].start_s
        for axes in pair:
            axes.axvline(at_s, color=colours["event"], linewidth=1, linestyle="--")
        name = above.annotate(
            cause(before, after),
            (at_s, 1),
            (0, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            color=colours["event"],
        )
        box = name.get_window_extent()
        left = min(box.x0, right - box.width)
        row = next((row for row, end in enumerate(taken) if end < left), len(taken))
        taken[row : row + 1] = [left + box.width + 4]
        name.set_position(((left - box.x0) * 72 / name.figure.dpi, 3 + ROW_POINTS * row))
    title = "workers, and the samples that each computes per step"
    above.set_title(title, loc="left", weight="bold", pad=6 + ROW_POINTS * len(taken))


def save(figure: Figure, file: Path) -> None:
    """Write the same bytes for the same run, without a date."""
    file.parent.mkdir(parents=True, exist_ok=True)
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, transparent=True, metadata=nothing, bbox_inches="tight", pad_inches=0.08)


def main(words: Sequence[str]) -> int:
    """The command. 1 means that there is nothing to draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run's folder or URL")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the path of both files, without -light.svg")
    options = parser.parse_args(words)
    try:
        phases = read_phases(RunFolder(Storage(options.run)))
    except StoreError as error:
        print(f"draw_run: {error}", file=sys.stderr)
        return 1
    for theme, colours in THEMES.items():
        names = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
        settings = {
            "font.size": 9,
            "axes.titlesize": 9,
            "axes.edgecolor": colours["faint"],
            "svg.fonttype": "none",  # text stays text, in the first sans-serif font that the reader has
            "svg.hashsalt": "planner",
        }
        file = options.output.with_name(f"{options.output.name}-{theme}.svg")
        with mpl.rc_context({**settings, **dict.fromkeys(names, colours["text"])}):
            save(draw(phases, colours), file)
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
