"""The controller's states in docs/architecture.md: the table and the picture say what the code does."""

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from planner.elastic.states import State

ROOT = Path(__file__).parents[2]
ELASTIC = ROOT / "planner" / "elastic"
SECTION = (
    (ROOT / "docs" / "architecture.md").read_text().partition("## The elastic controller\n")[2].partition("\n## ")[0]
)
STATES = {state.__name__ for state in get_args(State)}
# `step.py` begins every step here; `controller.py` takes in these events, which any state of a group may meet.
FOR_EVERY_STATE, FAILED, STARTED = "_seen", "failed", "started"


def functions(file):
    tree = ast.parse((ELASTIC / file).read_text())
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


STEP, CONTROLLER = functions("step.py"), functions("controller.py")


def calls(node):
    return [each for each in ast.walk(node) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)]


def reached(node):
    """This piece of `step.py`, and all functions that it leads to."""
    found, left = [node], [node]
    while left:
        for call in calls(left.pop()):
            called = STEP.get(call.func.id)
            if called is not None and called not in found:
                found.append(called)
                left.append(called)
    return found


def made(nodes):
    """The states that are made there."""
    return {call.func.id for node in nodes for call in calls(node)} & STATES


def acts(nodes):
    """The kinds of acts that are made there."""
    found = [call for node in nodes for call in calls(node) if call.func.id == "Act"]
    kinds = [[keyword.value.value for keyword in call.keywords if keyword.arg == "kind"] for call in found]
    return {(kind or ["nothing"])[0] for kind in kinds}


def branches():
    """State -> what `_next` does in it."""
    match = next(node for node in ast.walk(STEP["_next"]) if isinstance(node, ast.Match))
    for case in match.cases:
        for pattern in ast.walk(case.pattern):
            if isinstance(pattern, ast.MatchClass):
                yield pattern.cls.id, ast.Module(body=case.body, type_ignores=[])


BRANCHES = dict(branches())


def in_code(state):
    """The acts, and the next states, of a state."""
    nodes = reached(BRANCHES[state])
    following = made(nodes)
    if state == "Idle":
        following |= made([CONTROLLER[STARTED]])
    elif state != "Ending":
        following |= made([STEP[FOR_EVERY_STATE], CONTROLLER[FAILED]])
    return acts(nodes), following - {state}


def table():
    """State -> (acts, next states), as the document has them."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if line.startswith("| `")
    ]
    return {
        name.strip("`"): ({act.strip() for act in its_acts.split(",")}, set(re.findall(r"`(\w+)`", following)))
        for name, _, its_acts, following in rows
    }


def drawn():
    """State -> next states, as they are drawn."""
    arrows = re.findall(r"^ +(\w+) --> (\w+)", SECTION, re.MULTILINE)
    return {state: {end for start, end in arrows if start == state} for state in STATES}


TABLE = table()
# One function serves both: a group trains. Only one of them may do each of these.
OF_ONE = {"Running": {"abandon_newcomers"}, "Warming": {"warm"}}


def test_the_table_has_every_state():
    assert set(TABLE) == STATES == set(BRANCHES)


@pytest.mark.parametrize("state", sorted(STATES))
def test_the_table_says_what_the_code_does(state):
    """Acts and next states, by the functions that a state leads to."""
    its_acts, following = in_code(state)
    assert TABLE[state] == (its_acts - OF_ONE.get(state, set()), following)


def test_the_picture_has_the_arrows_of_the_table():
    assert drawn() == {state: following for state, (_, following) in TABLE.items()}
