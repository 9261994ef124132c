"""Shows a run on the terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import typer
from rich.console import Console

from planner.cli.options import progress_bar
from planner.cli.watch import Watch
from planner.report.view import RunView
from planner.runner.display import Display, Say, StartedRun

React = Callable[[StartedRun, Say, RunView], None]
"""hears of every view of a run, and may show lines"""


def display_on(out: Console, react: React | None = None) -> Display:
    """Lines and the panel on `out`; warnings and bars on stderr."""

    @contextmanager
    def watch(running: StartedRun) -> Iterator[Say]:
        view = RunView(step=running.step, committed_step=running.step, total_steps=running.total_steps)
        watching = Watch(running.run, out, view)
        watching.state = running.state
        if react is not None:
            watching.react = partial(react, running, watching.say)
        with watching:
            yield watching.say

    return Display(
        say=partial(out.print, soft_wrap=True), warn=partial(typer.echo, err=True), progress=progress_bar, watch=watch
    )
