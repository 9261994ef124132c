"""Arguments that several commands share, and the console they print to."""

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

# Wide enough for every table when nobody's terminal says how wide it is.
_PIPED_WIDTH = 160


def console() -> "Console":
    """A console as wide as the terminal, or wide enough where there is none."""
    import sys

    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)
