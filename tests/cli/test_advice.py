"""A message names only options that the command has which shows it.

The messages are texts in the rooms below `cli`. Which commands can reach a text is found from the imports. That is
more than really do, and `_SHOWN_BY` says where it is too much.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace

import pytest
from import_graph import imports, modules, modules_in_strings

from planner.cli import demo_command
from planner.cli.commands import COMMANDS, load
from planner.runner import execute
from planner.runner.start import Start
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

# Texts that fewer commands show than import them: which ones, and why.
_SHOWN_BY = {
    ("dispatch.connection", "--address"): {"run", "probe"},  # demo and verify connect to clusters that they started
    ("dispatch.connection_errors", "--address"): {"run", "probe"},
    ("provenance.identity", "--accept"): {"run", "submit"},  # the others resume no run
    ("provenance.stage", "--accept"): {"run", "submit"},
    ("train.choose_commit", "--accept"): {"run", "submit"},
    ("provenance.step_comparison", "--code"): {"audit", "report"},  # demo names the code itself, a test below
    ("recipes.dpo.batching", "--rows"): {"check"},  # traps are found for `check`
    ("recipes.halos.batching", "--rows"): {"check"},
    ("recipes.halos.batching", "--group-size"): {"check"},
    ("recipes.trainer.batching", "--rows"): {"check"},
    ("recipes.rewrite", "--to"): {"convert"},  # `check` writes nothing
    ("recipes.systems", "--to"): {"convert"},
    # They stand in or beside a command `planner run` or `planner show`.
    ("runner.execute", "--verbose"): {"run"},
    ("runner.execute", "--traceback"): {"show"},
    ("runner.plan_rates", "--gpu"): {"plan"},  # simulate reads no prices
    ("report.run_table", "--traceback"): {"show"},
    **{("runner.run_job", option): {"run"} for option in ("--address", "--nodes", "--set", "--accept")},
}
# It asks each system whether a file is its recipe, and shows no text of theirs.
_SHOWS_ITS_OWN = "planner.recipes.looks_like"
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+(?![\w_.])")


def options(command):
    """The long options of a command."""
    return {name for param in load(command).params for name in param.opts if name.startswith("--")}


OPTIONS = {command: options(command) for command in COMMANDS}


@cache
def reached_from(module) -> frozenset[str]:
    """The modules that a module imports, directly or not. A recipe system imports its reader by name."""
    found, left = set(), [module]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            if name != _SHOWS_ITS_OWN:
                left += [each.name for each in imports() if each.by == name and each.scope != "types"]
                left += [each for by, each in modules_in_strings() if by == name and by.endswith(".system")]
    return frozenset(found & set(modules()))


def commands_that_reach(module):
    return {name for name in COMMANDS if module in reached_from(f"planner.cli.{name.replace('-', '_')}_command")}


def texts(module) -> Iterator[str]:
    """The string literals of a module, without docstrings. `X` stands for what an f-string fills in."""
    tree = ast.parse(modules()[module].read_text())
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    skipped |= {id(part) for node in joined for part in node.values}
    for node in joined:
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def names_its_command(text, option):
    """Whether the command that has the option stands before it, such as `planner run --nodes` or `(check --rows`."""
    before = text[: text.index(option)]
    named = re.findall(r"planner ([\w-]+)", before) + re.findall(r"\b([\w-]+) $", before)
    return any(option in OPTIONS.get(command, ()) for command in named)


def advice():
    """(module without `planner.`, option, text) of every text below `cli` that names an option of some command."""
    known = set().union(*OPTIONS.values())
    return [
        (module.removeprefix("planner."), option, text)
        for module in modules()
        if not module.startswith("planner.cli")
        for text in texts(module)
        for option in dict.fromkeys(_OPTION.findall(text))
        if option in known and not names_its_command(text, option)
    ]


def test_every_option_that_a_message_names_is_one_of_the_command_that_shows_it():
    """Write the command before the option (`planner run --nodes 3`), or name no option."""
    wrong = [
        f"{module}: {text!r} names {option}, which {', '.join(sorted(lacking))} lack"
        for module, option, text in advice()
        if (lacking := {name for name in shown_by(module, option) if option not in OPTIONS[name]})
    ]
    assert wrong == []


def shown_by(module, option):
    return _SHOWN_BY.get((module, option)) or commands_that_reach(f"planner.{module}")


def test_there_is_advice_to_look_at_and_no_exception_without_a_text():
    """The test above would notice `planner prepare` with an option of `run`."""
    found = {(module, option) for module, option, _ in advice()}
    assert len(found) > 25
    assert set(_SHOWN_BY) - found == set()
    assert ("data.prepare_tokens", "--force") in found
    assert "prepare" in commands_that_reach("planner.data.jsonl")
    assert "--set" not in OPTIONS["prepare"]


def test_prepare_names_its_own_options_and_no_key_of_a_job():
    """Its messages come from modules that also read a job's data. `DataError.problem` is without them."""
    keys = {
        key
        for module in ("planner.data.jsonl", "planner.data.paths", "planner.data.prepare_tokens")
        for text in texts(module)
        for key in re.findall(r"\bdata\.[a-z_]+", "" if text == "data.path" else text.replace("Set data.field", ""))
    }
    assert keys == set()


@pytest.mark.parametrize("is_own", [True, False])
def test_the_demo_audits_a_loop_of_ones_own_without_another_option(cli, own_job, job, monkeypatch, is_own):
    """It has no `--code`, and the user has named the file in the job."""
    asked = []

    def audit(url, *, code="", progress=None):  # noqa: ARG001  the demo shows how far it is
        asked.append((url, code))
        raise KeyboardInterrupt  # enough was seen

    started = []

    def plan_start(job, *_, **__):
        folder = RunFolder(Storage(job.run_path))
        no = {
            "local": None,
            "accept": frozenset(),
            "committed": None,
            "passed_over": (),
            "data_notes": (),
            "mixture": (),
            "evaluation": (),
        }
        no |= {"notes": (), "changes": (), "begins": "", "opening": "", "resume_command": ""}
        return Start(job=job, address="", run=folder, num_samples=9, total_steps=4, **no)

    def run(start, _display):
        started.append(start)
        return SimpleNamespace(url="run", finished=True, total_steps=4)

    monkeypatch.setattr(demo_command, "plan_start", plan_start)
    monkeypatch.setattr(execute, "run", run)
    monkeypatch.setattr(demo_command, "audit", audit)
    cli("demo", own_job if is_own else job)
    assert asked == [("run", "loop.py" if is_own else "")]
    assert [start.opening[:9] for start in started] == ["own: 4 st" if is_own else "tiny: 4 s"]
