"""Says what a command is doing while it prints nothing else: a counter on a terminal, elsewhere a line now and then."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import typer

from planner.base.wait_reports import Activity
from planner.cli.options import console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

# Shorter work shows nothing on a terminal.
_SHOWN_AFTER_S = 1.0


@contextmanager
def doing(what: str, out: "Console | None" = None) -> Iterator[Callable[[str], None]]:
    """A context for work that prints nothing itself. Its value is called when something else is being done.

    On a terminal, the text stands in the last line with a counter of seconds. Elsewhere it is printed after
    3 s, then each time that the work has taken twice as long.

    Args:
        what: what is being done, such as `reading runs/demo`.
        out: the console, or stderr.
    """
    if not _is_terminal(out):
        with Activity(_say_on(out), what) as activity:
            yield activity.begin
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    bar = Progress(*columns, console=out or console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    with _shown_later(bar):
        yield lambda text: bar.reset(task, description=text)


@contextmanager
def progress_bar(
    what: str, columns: "Callable[[], tuple[ProgressColumn, ...]] | None" = None
) -> Iterator[Callable[[int, int], None]]:
    """A context whose value is called with `(done, of)`. It draws a bar on stderr if that is a terminal.

    Elsewhere it prints `what` and the two numbers on stderr, at the times of `doing`.

    Args:
        what: what is counted, such as `steps audited`.
        columns: returns rich's columns of the bar in place of its usual ones.
    """
    if not _is_terminal(None):
        with Activity(_say_on(None), f"{what}: 0") as activity:
            yield lambda done, of: activity.update(f"{what}: {done:,} of {of:,}" if of else f"{what}: {done:,}")
        return
    from rich.progress import Progress

    bar = Progress(*(columns() if columns else ()), console=console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    with _shown_later(bar):
        yield lambda done, of: bar.update(task, completed=done, total=of or None)


@contextmanager
def _shown_later(bar: "Progress") -> Iterator[None]:
    """Show the bar after a second, so that short work does not flicker."""
    timer = threading.Timer(_SHOWN_AFTER_S, bar.start)
    timer.daemon = True
    if _SHOWN_AFTER_S > 0:
        timer.start()
    else:
        bar.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        bar.stop()


def _say_on(out: "Console | None") -> Callable[[str], None]:
    # Not by the console: after a closed pipe it would be quiet, and the command would go on without a reader.
    return partial(typer.echo, err=True) if out is None else partial(typer.echo, file=out.file)


def _is_terminal(out: "Console | None") -> bool:
    """Whether the console, or stderr, is a terminal that can take a line back. One that is dumb cannot."""
    if out is None and not (sys.stderr and sys.stderr.isatty()):
        return False  # without rich, which takes long to import
    shown_on = out or console(stderr=True)
    return shown_on.file.isatty() and shown_on.is_interactive
