"""Arguments that several commands share, and the console they print to."""

import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="a job file (YAML)", show_default=False)]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="override a value of the job, such as train.steps=400"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]


def console() -> "Console":
    """A console that prints every text as it is: `[` and `:` in a path or a message are no markup."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is; None where a line may be as long as it likes."""
    return shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None
