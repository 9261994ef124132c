"""The command line: one file per command, heavy imports inside. Only this room writes to the terminal.

Exit codes: 0 done; 1 the run, the audit or the proof failed, or what was asked for cannot be read; 2 the input was
wrong, and nothing was started; 130 interrupted. `runs` and `show` end with 0 whatever state they find. With --json,
stdout is one JSON document or empty.
"""

import sys
from typing import Annotated, NoReturn

import typer

from planner.base.version import VERSION
from planner.cli import (
    audit,
    check,
    convert,
    demo,
    export,
    init,
    notice_agent,
    plan,
    prepare,
    run,
    runs,
    schema,
    show,
    submit,
    verify,
)
from planner.cli.recipes import FOREIGN_OPTIONS
from planner.errors import PlannerError


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"planner {VERSION}")
        raise typer.Exit


app = typer.Typer(
    help="Keeps a training recipe's global batch exact on whatever GPUs Ray grants.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)


@app.callback()
def _root(
    version: Annotated[  # acted upon by its callback
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


app.command("init")(init.init)
app.command("plan")(plan.plan)
app.command("run")(run.run)
app.command("convert", context_settings=FOREIGN_OPTIONS)(convert.convert)
app.command("check", context_settings=FOREIGN_OPTIONS)(check.check)
app.command("prepare")(prepare.prepare)
app.command("runs")(runs.runs)
app.command("show")(show.show)
app.command("submit")(submit.submit)
app.command("audit")(audit.audit)
app.command("export")(export.export)
app.command("verify")(verify.verify)
app.command("demo")(demo.demo)
app.command("notice-agent")(notice_agent.notice_agent)
app.command("schema")(schema.schema)


def main() -> None:
    """The console script: a `PlannerError` becomes its sentence on stderr and its exit code.

    typer sees to Ctrl-C (130) and to a reader that has left (1).
    """
    try:
        app()
    except PlannerError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        # The machine's fault, not a mistake in this program: a full disk behind stdout, a file that went away.
        _fail(str(error), 1)


def _fail(text: str, exit_code: int) -> NoReturn:
    for line in text.split("\n"):
        # A path or a value may hold what would steer the terminal.
        shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
        sys.stderr.write(f"planner: {shown}\n")
    sys.exit(exit_code)
