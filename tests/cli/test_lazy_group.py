"""The command group imports a command only when it is called, and its overview matches each command's help."""

import os
import re
import subprocess
import sys

import pytest

from planner.cli.commands import COMMANDS, PANELS, load


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_says_what_the_command_says_of_itself(name):
    """The table is a copy, so that the overview needs no imports."""
    help_ = load(name).help
    assert help_ is not None
    assert " ".join(help_.partition("\n\n")[0].split()) == COMMANDS[name]


def test_every_command_is_in_one_panel_of_the_overview(cli):
    """The panels are printed in their order."""
    named = [name for names in PANELS.values() for name in names]
    assert sorted(named) == sorted(COMMANDS)
    out = cli("--help").out
    assert sorted(PANELS, key=out.index) == list(PANELS)


def test_help_shows_flags_without_a_type(cli):
    """Also `--help` itself. An option with a value shows what it takes."""
    out = cli("run", "--help").out
    assert re.search(r"--dry-run +check what", out)
    assert re.search(r"--nodes +N .*logical nodes of the local cluster +.default: \(as many as the run uses\)", out)
    assert "<bool>" not in out + cli("--help").out


def test_the_usage_of_check_names_its_overrides_once(cli):
    """They may be repeated."""
    usage = next(line for line in cli("check", "--help").out.splitlines() if "Usage" in line)
    assert usage.rstrip().endswith("[OPTIONS] {RECIPE} [KEY=VALUE]...")


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


@pytest.mark.process
def test_the_overview_imports_no_command():
    """It does not import rooms that a command needs either."""
    ours = {name for name in loaded_by("--help") if name.partition(".")[0] == "planner"}
    rooms = {name.split(".")[1] for name in ours if "." in name}
    assert rooms == {"base", "cli", "errors"}
    assert {name for name in ours if name.startswith("planner.cli.")} == {"planner.cli.commands"}


# What a plan without options does without. Each takes milliseconds of a command that takes a fraction of a second.
NOT_OF_A_PLAN = {
    "planner.base.memory_errors",
    "planner.cluster.nodes",
    "planner.events.failures",
    "planner.events.kinds",
    "planner.events.outlook",
    "planner.events.resuming",
    "planner.events.saves",
    "planner.events.sizing",
    "planner.events.stopping",
    "planner.files.cluster_file",
    "planner.files.ec2_types",
    "planner.files.kuberay",
    "planner.files.prices_file",
    "planner.files.rates_file",
    "planner.job.memory",
    "planner.job.ways_out",
    "planner.plan.capacity_history",
    "planner.plan.growth",
    "planner.plan.interval",
    "planner.plan.rates",
    "planner.plan.revise",
    "planner.plan.speed",
    "planner.plan.step_time",
    "planner.report.cost_text",
    "planner.report.length_table",
    "planner.report.memory_text",
    "planner.runner.memory",
    "planner.runner.plan_rates",
    "planner.wording.event_text",
}


@pytest.mark.process
def test_a_plan_imports_its_own_command_alone(job):
    """It imports no library that it does not need."""
    loaded = loaded_by("plan", job)
    assert not {"torch", "ray", "numpy", "fsspec", "rich"} & loaded
    assert not NOT_OF_A_PLAN & loaded
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


@pytest.mark.process
def test_shells_complete_commands_and_their_options():
    """Names from the table, options from the command."""
    assert completed("planner", "pl") == ["plan"]
    assert completed("planner", "plan", "--cl") == ["--cluster"]


def test_an_unknown_command_is_told_the_nearest(cli):
    """In one line, as every error."""
    answer = cli("pln")
    assert answer.code == 2
    assert answer.err == "planner: no such command: pln. Did you mean planner plan?\n"
