"""Draws a run: its workers over time, above the global batch of every step.

    python docs/draw_run.py runs/demo -o docs/images/demo

This writes `docs/images/demo-light.svg` and `docs/images/demo-dark.svg`. It reads the run's ledger. It needs
matplotlib: `pip install '.[report]'`. `planner report` draws the same picture on its page.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from planner.base.text import counted
from planner.errors import StoreError
from planner.pictures.canvas import Size, style, to_svg
from planner.pictures.timeline import draw_timeline
from planner.report.page.sentences import cause_words
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.story.read import read_story
from planner.story.values import Change, Phase, RunHistory

# Blue and orange by Okabe and Ito, which colour-blind people tell apart. Text and page are GitHub's.
THEMES = {
    "light": {"text": "#1f2328", "muted": "#8c959f", "workers": "#0072b2", "event": "#bc4c00", "page": "#ffffff"},
    "dark": {"text": "#e6edf3", "muted": "#7d8590", "workers": "#56b4e9", "event": "#e69f00", "page": "#0d1117"},
}
SIZE = Size(name="readme", width=420, font=9)  # narrow, so that its text stays readable on a phone


def read_trained(run: RunFolder) -> RunHistory:
    """The run's story. Its time begins with its first step.

    Raises:
        StoreError: there is no run, or none of its generations did a step.
    """
    story = read_story(run, "", None)
    if not story.phases:
        raise StoreError(f"{run.storage.url}: no step is on record yet. Draw the run later")
    first_s = story.phases[0].start_s
    changes = tuple(
        replace(each, at_s=each.at_s - first_s, resumed_s=each.resumed_s - first_s) for each in story.changes
    )
    return replace(story, phases=tuple(_earlier(phase, first_s) for phase in story.phases), changes=changes)


def _earlier(phase: Phase, seconds: float) -> Phase:
    batch = replace(phase.batch, x=tuple(x - seconds for x in phase.batch.x))
    return replace(phase, start_s=phase.start_s - seconds, end_s=phase.end_s - seconds, batch=batch)


def name_of(_number: int, change: Change) -> str:
    """What stands above a change."""
    again = f", {counted(change.again, 'step')} done again" if change.again else ""
    return f"{cause_words(change)}{again}"


def main(words: Sequence[str]) -> int:
    """The command. 1 means that there is nothing to draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run's folder or URL")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the path of both files, without -light.svg")
    options = parser.parse_args(words)
    try:
        story = read_trained(RunFolder(Storage(options.run)))
    except StoreError as error:
        print(f"draw_run: {error}", file=sys.stderr)
        return 1
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for theme, colours in THEMES.items():
        file = options.output.with_name(f"{options.output.name}-{theme}.svg")
        with style(SIZE, "readme"):
            made = draw_timeline(story.phases, story.changes, SIZE, "seconds of training", name_of)
            file.write_text(f"{to_svg(made, colours.__getitem__)}\n", encoding="utf-8")
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
