"""Arguments that several commands share, and the console they print to."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from planner.dispatch.token_file import token_warning

if TYPE_CHECKING:
    from rich.console import Console

RESUME_VARIABLE = "PLANNER_RESUME"
"""holds the command that resumes the run, where that is not this one: `planner submit` sets it for the cluster"""

# Shorter work needs no bar.
_BAR_AFTER_S = 1.0

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="a job file (YAML)", show_default=False)]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="override a value of the job, such as train.steps=400"),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="check what can be checked, show what would be done, and do nothing")
]
AcceptOption = Annotated[
    list[str] | None,
    typer.Option("--accept", metavar="FIELD", help="go on although this has changed: data, seed, recipe, ..."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]


def console(*, stderr: bool = False) -> "Console":
    """A console that prints every text as it is: `[` and `:` in a path or a message are no markup."""
    from rich.console import Console  # `planner plan` prints without it

    return Console(markup=False, emoji=False, highlight=False, stderr=stderr)


def warn_of_open_token() -> None:
    """Say on stderr that others may use the token that this process shows to a cluster, if they may."""
    if warning := token_warning(os.environ):
        typer.echo(f"planner: {warning}", err=True)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """What to call with `(done, of)`: it draws a bar on stderr while work is long, if that is a terminal."""
    if not (sys.stderr and sys.stderr.isatty()):
        yield lambda _done, _of: None
        return
    from rich.progress import Progress  # the same

    began_s = time.monotonic()
    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, visible=False)
        yield lambda done, of: bar.update(
            task, completed=done, total=of, visible=time.monotonic() - began_s > _BAR_AFTER_S
        )


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is; None where a line may be as long as it likes."""
    return shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None
