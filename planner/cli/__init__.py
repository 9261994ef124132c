"""The command line: one file per command, heavy imports inside. Only this room writes to the terminal.

Exit codes: 0 done, 1 the run or the audit failed, 2 the input was wrong, 130 interrupted.
"""

import sys

import typer

from planner.cli import audit, demo, plan, run
from planner.errors import PlannerError

app = typer.Typer(
    help="Keeps a training recipe's global batch exact on whatever GPUs Ray grants.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)
app.command("plan")(plan.plan)
app.command("run")(run.run)
app.command("audit")(audit.audit)
app.command("demo")(demo.demo)


def main() -> None:
    """The console script: a `PlannerError` becomes its sentence on stderr and its exit code."""
    try:
        app()
    except PlannerError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"planner: {line}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("planner: interrupted\n")
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has left. Python would complain while flushing stdout at exit.
        sys.stderr.close()
        sys.exit(1)
