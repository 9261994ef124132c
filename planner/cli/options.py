"""Options that several commands share, and the console that they print to."""

import math
import os
import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.dispatch.token_file import token_warning
from planner.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

RESUME_VARIABLE = "PLANNER_RESUME"
"""environment variable with the command that resumes the run, which `planner submit` sets on the cluster"""


def _given(run: str) -> str:
    if run == "":  # it is None while a shell completes the command
        raise UserError("RUN is empty. Write a run's folder or URL")
    return run


RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="a run's folder or URL", show_default=False, callback=_given)
]
CodeOption = Annotated[
    str, typer.Option(metavar="FILE", help="for a run with your own training loop: the Python file with dataset()")
]
ForceOption = Annotated[bool, typer.Option("--force", help="replace an existing file")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="a job file (YAML)", show_default=False)]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="override a value of the job, such as train.steps=400 (may be repeated)"
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="check what can be checked, show what would be done, and start nothing")
]
AcceptOption = Annotated[
    list[str] | None,
    typer.Option("--accept", metavar="FIELD", help="resume although this has changed: data, seed, recipe, ..."),
]
StorageOption = Annotated[
    float | None,
    typer.Option(
        "--storage-gbps",
        metavar="GB/S",
        help="what the run's storage takes from all workers together, in GB/s (10^9 bytes per second): "
        "show after how long a commit is durable",
    ),
]


def address_option(without: str) -> Any:
    """The option `--address`. `without` says what happens without one."""
    return typer.Option(envvar="RAY_ADDRESS", help=f"address of a Ray cluster (without one, {without})")


JsonOption = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]


# One byte per second. Below it, the time of a commit would exceed what JSON can hold.
_LEAST_GBPS = 1e-9


def require_rate(storage_gbps: float | None) -> None:
    """Check the value of `--storage-gbps`.

    Raises:
        UserError: it is not a finite number above 0, or less than one byte per second.
    """
    if storage_gbps is not None and not _LEAST_GBPS <= storage_gbps < math.inf:
        tiny = ", less than one byte per second" if 0 < storage_gbps < _LEAST_GBPS else ""
        raise UserError(
            f"--storage-gbps is {storage_gbps:g}{tiny}. Write a number above 0, such as 0.5 for 500 MB per second"
        )


def console(*, stderr: bool = False) -> "Console":
    """A console that prints every text unchanged: `[` and `:` in a path or a message are not markup."""
    from rich.console import Console  # not at the top, because `planner plan` does without it

    return Console(markup=False, emoji=False, highlight=False, stderr=stderr)


def warn_of_open_token() -> None:
    """Warn on stderr if other users can read the token that this process sends to a cluster."""
    if warning := token_warning(os.environ):
        typer.echo(f"planner: {warning}", err=True)


def terminal_width() -> int | None:
    """The width of the terminal in columns. None if stdout is a pipe or a file, where lines stay whole."""
    return shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None


def styled(text: str, *, bold: bool | None = None, colour: str | None = None) -> str:
    """The text with escape codes, or unchanged: for a pipe, a file or a dumb terminal, or if NO_COLOR is set."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if is_plain or not (sys.stdout and sys.stdout.isatty()):
        return text
    return typer.style(text, bold=bold, fg=colour)


def print_heading(text: str) -> None:
    """Print a line in bold."""
    typer.echo(styled(text, bold=True))
