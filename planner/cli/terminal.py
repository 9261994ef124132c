"""The `Display` of the commands: shows a run on the terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import typer
from rich.console import Console

from planner.cli.activity import doing, progress_bar
from planner.cli.live_panel import LivePanel
from planner.runner.display import Display, Say, StartedRun
from planner.story.run_story import RunStory, StoryFold

React = Callable[[StartedRun, Say, RunStory], None]
"""called after every look at a run, and may show lines"""


def display_on(out: Console, react: React | None = None, *, verbose: bool = False) -> Display:
    """A display with lines and the live panel on `out`, and with warnings and progress bars on stderr."""

    @contextmanager
    def watch(started: StartedRun) -> Iterator[Say]:
        begin = StoryFold(step=started.step, total_steps=started.total_steps)
        watching = LivePanel(started.run, out, begin)
        watching.state, watching.why, watching.held_step = started.state, started.why, started.held_step
        if react is not None:
            watching.react = partial(react, started, watching.say)
        with watching:
            yield watching.say

    return Display(
        say=partial(out.print, soft_wrap=True),
        warn=partial(typer.echo, err=True),
        progress=progress_bar,
        doing=partial(doing, out=out),
        watch=watch,
        verbose=verbose,
    )
