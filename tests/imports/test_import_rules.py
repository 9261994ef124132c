"""The import law: which room may know what, in every scope. `import_graph.py` reads the imports and prints figures."""

import ast
import subprocess
import sys

import import_graph
import pytest
from import_graph import PACKAGE, imports, modules, reaches, room_of

STANDARD = set(sys.stdlib_module_names)

# Each line may import the lines above it: at the top of a file, inside functions, and for type checkers.
ORDER = [
    ["errors"],
    ["base"],
    ["events"],
    ["plan"],
    ["order", "job"],
    ["cluster", "data", "store", "notice", "keeper"],
    ["files"],
    ["provenance"],
    ["story"],
    ["elastic", "probe"],
    ["tracking"],
    ["wording"],
    ["train"],
    ["trl", "simulation"],
    ["local_cluster"],
    ["dispatch"],
    ["submit", "rehearsal"],
    ["recipes"],
    ["runner"],
    ["report"],
    ["pictures"],
    ["cli"],
    ["own"],
    ["planner"],
]
LAYER = {room: number for number, rooms in enumerate(ORDER) for room in rooms}

# Other packages that a room's modules may import, besides the standard library: at the top, and inside functions.
AT_THE_TOP = {
    "order": {"numpy"},
    "job": {"pydantic", "pydantic_core"},
    "cluster": {"numpy"},
    "files": {"pydantic", "yaml"},
    "data": {"numpy"},
    "store": {"fsspec", "pydantic"},
    "keeper": {"xxhash"},
    "probe": {"fsspec"},
    "train": {"numpy", "torch"},
    "trl": {"torch", "transformers"},
    "dispatch": {"ray"},
    "submit": {"ray", "requests", "urllib3"},
    "rehearsal": {"torch"},
    "recipes": {"yaml"},
    "pictures": {"matplotlib"},
    "cli": {"rich", "typer"},
}
INSIDE_FUNCTIONS = {
    "probe": {"torch"},
    "data": {"bs4", "datasets", "huggingface_hub", "jinja2", "pyarrow", "transformers"},
    "train": {"liger_kernel", "peft", "safetensors", "transformers"},
    "trl": {"accelerate"},
    "local_cluster": {"ray"},
    "dispatch": {"pyarrow", "torch"},
    "submit": {"aiohttp"},
    "rehearsal": {"ray"},
    "tracking": {"mlflow", "tensorboard", "trackio", "wandb"},
    "runner": {"torch"},
    "cli": {"matplotlib"},
}
# Whatever tells the time, the dice, the machine or the user apart does not belong into a pure decision.
NOT_PURE = {"time", "os", "random", "logging", "datetime", "secrets", "pathlib", "subprocess", "socket"}
PURE = {"events", "plan", "order", "elastic", "wording"}

MOST_LINES = 60
MOST_HEAVY = 0.21


def test_every_room_has_its_place():
    """A new room must say what it may know."""
    assert {room_of(module) for module in modules()} == set(LAYER)


@pytest.mark.parametrize("room", LAYER)
def test_a_room_imports_only_what_lies_below_it(room):
    """Imports point one way, those inside functions and for type checkers included."""
    wrong = [
        f"{each.by} imports {each.name}"
        for each in imports()
        if room_of(each.by) == room != room_of(each.name)
        and each.package == "planner"
        and LAYER[room_of(each.name)] >= LAYER[room]
    ]
    assert not wrong


def test_strings_name_no_module_that_an_import_may_not():
    """A room's own, and those below it. Upwards: what a kind of data or of objective names, and what a cluster runs."""
    upwards = {
        (room_of(by), room_of(name))
        for by, name in import_graph.modules_in_strings()
        if room_of(by) != room_of(name) and name != "planner" and LAYER[room_of(name)] >= LAYER[room_of(by)]
    }
    assert upwards == {("job", "data"), ("job", "tracking"), ("job", "train"), ("submit", "cli")}


def test_few_modules_import_by_name():
    """What they import is not in the graph. They are listed here, each with whose names it imports."""
    assert import_graph.imports_by_name() == {
        "planner",  # the public names
        "planner.cli.commands",  # the command that is called
        "planner.data.user_dataset",  # the user's file
        "planner.dispatch.ray_internal.compatibility",  # Ray's private names
        "planner.job.kind_registry",  # what the spec of a kind names
        "planner.recipes.system",  # the reader of the recipe
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class A:\n  import planner.train", [("planner.train", "module")]),
        ("try:\n  import ray\nexcept ImportError:\n  import torch", [("ray", "module"), ("torch", "module")]),
        ("def f():\n  class A:\n    from planner import train", [("planner.train", "function")]),
        ("from planner import run", [("planner", "module")]),
        ("if TYPE_CHECKING:\n  import ray\nelse:\n  import torch", [("ray", "types"), ("torch", "module")]),
        ("if not TYPE_CHECKING:\n  import torch", [("torch", "module")]),
        (
            "def f():\n  if typing.TYPE_CHECKING:\n    import ray\n  import torch",
            [("ray", "types"), ("torch", "function")],
        ),
    ],
)
def test_no_import_hides(text, found):
    """Wherever it stands, with the scope in which Python runs it."""
    assert list(import_graph._named(ast.parse(text), "module")) == found


def test_a_relative_import_is_refused():
    """It would name no module."""
    with pytest.raises(AssertionError, match="imports are absolute"):
        list(import_graph._named(ast.parse("from . import train"), "module"))


def test_there_are_no_circles():
    """Between modules, in any scope."""
    assert not import_graph.circle()


@pytest.mark.parametrize("room", LAYER)
def test_a_room_names_only_the_packages_that_it_may(room):
    """Heavy ones inside functions alone, so that a light command does not load them."""
    top = AT_THE_TOP.get(room, set())
    may = {"module": top, "function": top | INSIDE_FUNCTIONS.get(room, set())}
    may["types"] = may["function"]
    wrong = [
        f"{each.by} imports {each.name} ({each.scope})"
        for each in imports()
        if room_of(each.by) == room and each.package not in {"planner", *STANDARD, *may[each.scope]}
    ]
    assert not wrong


@pytest.mark.parametrize("table", [AT_THE_TOP, INSIDE_FUNCTIONS], ids=["at the top", "inside functions"])
def test_the_law_allows_nothing_that_nobody_uses(table):
    """A permission that is left over hides the next mistake."""
    scopes = {"module"} if table is AT_THE_TOP else {"function"}
    used = {(room_of(each.by), each.package) for each in imports() if each.scope in scopes}
    assert {(room, package) for room, packages in table.items() for package in packages} <= used


@pytest.mark.parametrize("room", sorted(PURE))
def test_decisions_are_pure(room):
    """No clock, no dice, no files: what they return is a function of what they are handed."""
    used = {each.package for each in imports() if room_of(each.by) == room}
    assert not used & NOT_PURE


def test_functions_are_short():
    """One that is longer does more than one thing."""
    assert not import_graph.long_functions(MOST_LINES)


def test_few_modules_reach_torch_or_ray():
    """Whoever changes a decision, a file format or a message waits for neither."""
    print(import_graph.summary())  # pytest -rP shows it
    assert len(reaches()) <= MOST_HEAVY * len(modules())


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("planner", {"torch", "ray", "numpy", "pydantic"}),
        ("planner.plan", {"torch", "ray", "numpy", "pydantic"}),
        ("planner.files", {"torch", "ray", "numpy"}),
        ("planner.notice.agent", {"torch", "ray", "numpy"}),
        ("planner.recipes", {"torch", "ray", "numpy"}),
        ("planner.cli", {"torch", "ray", "numpy"}),
        ("planner.order.order", {"torch", "ray"}),
        ("planner.data", {"torch", "ray"}),
        ("planner.store.run_folder", {"torch", "ray"}),
        ("planner.probe.measure", {"torch", "ray", "numpy"}),
        ("planner.provenance.audit", {"torch", "ray"}),
        ("planner.elastic.controller", {"torch", "ray", "numpy"}),
        ("planner.train.generation", {"ray"}),
        ("planner.trl", {"torch", "ray", "numpy", "transformers", "trl"}),
        ("planner.local_cluster.embedded", {"torch", "ray"}),
    ],
)
def test_importing_loads_nothing_heavier_than_it_needs(module, unwanted):
    """By the set of modules that a fresh interpreter has loaded afterwards."""
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not unwanted & set(loaded)


# Imports every module of the room in a fresh interpreter, and prints what that has loaded.
LOADED_BY_PLAN = """
import importlib, pkgutil, sys
before = set(sys.modules)
import planner.plan
for module in pkgutil.walk_packages(planner.plan.__path__, "planner.plan."):
    importlib.import_module(module.name)
print(*(set(sys.modules) - before))
"""


@pytest.mark.process
def test_the_plan_room_needs_the_standard_library_alone():
    """By loaded modules: neither itself nor what it imports brings pydantic, or any other package."""
    code = [sys.executable, "-c", LOADED_BY_PLAN]
    loaded = set(subprocess.run(code, capture_output=True, text=True, check=True).stdout.split())
    assert {module for module in modules() if room_of(module) == "plan"} <= loaded
    assert {name.partition(".")[0] for name in loaded} <= {"planner", *STANDARD}
    ours = {room_of(name) for name in loaded if name.partition(".")[0] == "planner"}
    assert ours == {"planner", "plan", "events", "errors"}


def test_the_figures_are_of_this_package():
    """It reads what is there: imports inside functions, and how long functions are."""
    assert len(modules()) == len(list(PACKAGE.rglob("*.py")))
    assert any(each.scope == "function" and each.package == "torch" for each in imports())
    assert import_graph.long_functions(10)
