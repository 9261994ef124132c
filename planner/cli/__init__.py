"""The command line: one file per command, imported when the command is called. Only this room writes to the terminal.

Exit codes: 0 done. 1 the run, the audit or the comparison failed, or a file cannot be read. 2 the input was wrong, and
nothing was started. 130 interrupted. `runs` and `show` exit with 0 for every state of a run. With --json, stdout is one
JSON document or empty.
"""

import sys
from typing import Annotated, NoReturn

import typer

from planner.base.version import VERSION
from planner.cli.code_traceback import keep_traceback
from planner.cli.commands import LazyGroup
from planner.errors import PlannerError


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"planner {VERSION}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyGroup,
    help="Keeps a training recipe's global batch exact on whatever GPUs Ray grants.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)


@app.callback()
def _root(
    version: Annotated[  # its callback acts on it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The console script. It prints the message of a `PlannerError` to stderr and exits with its exit code.

    typer handles Ctrl-C (exit code 130) and a closed pipe (1).
    """
    try:
        app()
    except PlannerError as error:
        kept = keep_traceback(error.code_traceback) if error.code_traceback else None
        _fail(f"{error}\nFor the whole traceback: {kept}" if kept else str(error), error.exit_code)
    except OSError as error:
        # Not a mistake in this program: a full disk behind stdout, or a file that was removed.
        _fail(str(error), 1)


def _fail(text: str, exit_code: int) -> NoReturn:
    for line in text.split("\n"):
        # A path or a value may contain control characters for the terminal.
        shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
        sys.stderr.write(f"planner: {shown}\n")
    sys.exit(exit_code)
