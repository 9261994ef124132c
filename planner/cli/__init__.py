"""The command line: one file per command, imported when the command is called. Only this room writes to the terminal.

Exit codes: 0 done. 1 the run, the audit or the comparison failed, or a file cannot be read. 2 the input was wrong, and
nothing was started. 130 interrupted. `runs` and `show` exit with 0 for every state of a run. With --json, stdout is one
JSON document or empty.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from planner.base.disk import cache_folder
from planner.base.text import as_submitted
from planner.base.version import VERSION
from planner.cli.commands import LazyGroup, UnknownCommand
from planner.errors import PlannerError, UserError, printable

# The base of all that is wrong with a command line. typer has no public name for it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_TRACEBACK = "traceback.txt"


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

    The same holds for typer's usage errors, with exit code 2. typer handles Ctrl-C (130) and a closed pipe (1).
    """
    try:
        # Outside of its standalone mode, typer raises usage errors and returns the code of `typer.Exit`.
        code = app(prog_name="planner", standalone_mode=False)
    except _UsageError as error:
        if len(sys.argv) == 1:
            sys.exit(UserError.exit_code)  # `planner` alone: typer has printed the help
        from planner.cli.usage_errors import usage_message  # loaded only for an error

        _fail(usage_message(error), UserError.exit_code)
    except UnknownCommand as error:
        from planner.cli.usage_errors import unknown_command

        _fail(unknown_command(error.args[0]), UserError.exit_code)
    except typer.Abort:
        _fail("the input ended before the command had read what it asked for", 1)
    except PlannerError as error:
        _fail(f"{error}{_traceback_line(error)}", error.exit_code)
    except OSError as error:
        # Not a mistake in this program: a full disk behind stdout, or a file that was removed.
        _fail(str(error), 1)
    sys.exit(code if isinstance(code, int) else 0)


def _traceback_line(error: PlannerError) -> str:
    """A line that names the file with the traceback of the user's own code. Empty if there is none."""
    if not error.code_traceback:
        return ""
    kept = _keep_traceback(error.code_traceback)
    return f"\nFor the whole traceback: {kept}" if kept else ""


def _keep_traceback(text: str) -> Path | None:
    """Write the traceback in place of the last one, readable to this user only. None if that is not possible."""
    file = cache_folder() / _TRACEBACK
    fresh = file.with_name(f"{_TRACEBACK}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(fresh, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
            stream.write(text)
        fresh.replace(file)
    except OSError:
        return None
    return file


def _fail(text: str, exit_code: int) -> NoReturn:
    for line in as_submitted(text).split("\n"):
        # A path or a value may contain control characters for the terminal.
        if sys.stderr is not None:  # it is closed
            with contextlib.suppress(OSError):  # a full disk behind it changes no exit code
                sys.stderr.write(f"planner: {printable(line)}\n")
                sys.stderr.flush()
    sys.exit(exit_code)
