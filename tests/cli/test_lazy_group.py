"""The command group imports a command only when it is called, and its overview matches each command's help."""

import os
import subprocess
import sys

import pytest

from planner.cli.commands import COMMANDS, load


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_says_what_the_command_says_of_itself(name):
    """The table is a copy, so that the overview needs no imports."""
    help_ = load(name).help
    assert help_ is not None
    assert " ".join(help_.partition("\n\n")[0].split()) == COMMANDS[name]


def loaded_by(*arguments):
    """The modules that are loaded when a command line ends."""
    code = (
        "import atexit, sys; from planner.cli import main\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); sys.argv = ['planner', *sys.argv[1:]]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


def test_the_overview_imports_no_command():
    """It does not import rooms that a command needs either."""
    ours = {name for name in loaded_by("--help") if name.partition(".")[0] == "planner"}
    rooms = {name.split(".")[1] for name in ours if "." in name}
    assert rooms == {"base", "cli", "errors"}
    assert {name for name in ours if name.startswith("planner.cli.")} == {"planner.cli.commands"}


def test_a_plan_imports_its_own_command_alone(job):
    """It imports no library that it does not need."""
    loaded = loaded_by("plan", job)
    assert not {"torch", "ray", "numpy", "fsspec", "rich"} & loaded
    assert {name for name in loaded if name.startswith("planner.cli.")} == {
        "planner.cli.commands",
        "planner.cli.counts",
        "planner.cli.options",
        "planner.cli.plan_command",
    }


def completed(*arguments):
    """What a shell offers to complete the last argument."""
    code = "import sys; from planner.cli import main; sys.argv = ['planner']; main()"
    asked = {
        "_PLANNER_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(arguments),
        "COMP_CWORD": str(len(arguments) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **asked}
    )
    return done.stdout.split()


def test_shells_complete_commands_and_their_options():
    """Names from the table, options from the command."""
    assert completed("planner", "pl") == ["plan"]
    assert completed("planner", "plan", "--cl") == ["--cluster"]


def test_an_unknown_command_is_told_the_nearest(cli):
    """The lazy group keeps typer's suggestion."""
    answer = cli("pln")
    assert answer.code == 2
    assert "No such command 'pln'. Did you mean 'plan'" in answer.err
