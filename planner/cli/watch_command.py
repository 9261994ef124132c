"""`planner watch RUN`: a live board of one run, from its folder alone."""

import sys
import time

import typer

from planner.base.disk import absolute_url
from planner.cli.activity import doing
from planner.cli.live_board import LiveBoard, as_text
from planner.cli.options import RunArgument, console
from planner.cli.run_watcher import RunWatcher
from planner.report.board import board
from planner.store.run_folder import no_run_error
from planner.store.storage import Storage
from planner.store.survey import is_run

_WIDTH, _HEIGHT = 100, 60


def watch(
    run: RunArgument,
) -> None:
    """Watch a run on a live board: workers, loss, events and the next decision. q ends it. Changes nothing.

    In an empty folder it waits for the run to begin. Without a terminal it prints one board and ends.
    Example: planner watch runs/my-run
    """
    url = absolute_url(run)
    storage = Storage(url)
    if not is_run(storage) and (storage.names("") or not storage.exists("")):
        raise no_run_error(run)
    out = console()
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    if not is_terminal or out.is_dumb_terminal:
        width = out.width if is_terminal else _WIDTH
        with doing(f"reading {run}"):
            seen = RunWatcher(url).look()
        lines = board(seen, width, _HEIGHT, time.time(), ascii_only=not is_unicode(out.encoding))
        while lines and not lines[-1]:
            lines.pop()
        for line in lines:
            out.print(as_text(line), soft_wrap=True)
        return
    live = LiveBoard(out, RunWatcher(url), is_remote=not storage.is_local, ascii_only=not is_unicode(out.encoding))
    if exit_code := live.run():
        raise typer.Exit(exit_code)


def is_unicode(encoding: str) -> bool:
    """Whether an encoding has the characters of drawings."""
    return encoding.lower().startswith("utf")
