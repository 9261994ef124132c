"""The import law: which room may know what. Held at module level, and by the set of loaded modules."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "planner"

# The values that cross rooms; every room may use them.
VALUES = {
    "planner",
    "planner.__version__",
    "planner.errors",
    "planner.base.heartbeat",
    "planner.job.cadence",
    "planner.job",
    "planner.job.lengths",
    "planner.plan.limits",
    "planner.cluster.nodes",
    "planner.base.reminders",
    "planner.base.disk",
    "planner.base.extras",
    "planner.base.formats",
    "planner.base.permissions",
}
STANDARD = set(sys.stdlib_module_names)
# Whatever tells the time, the dice, the machine or the user apart does not belong into a pure decision.
NOT_PURE = {"time", "os", "random", "logging", "datetime", "secrets", "pathlib", "subprocess", "socket"}

# Room -> what its modules may import at module level, besides the standard library, the values and themselves.
LAW = {
    "plan": set(),
    "order": {"numpy"},
    "data": {"numpy", "planner.data.model_files"},
    "store": {"fsspec", "pydantic"},
    "train": {
        "torch",
        "numpy",
        "planner.data",
        "planner.order",
        "planner.plan",
        "planner.store",
        "planner.provenance.identity",
        "planner.data.model_files",
    },
    # Ray at module level in `private` alone, which is imported inside functions.
    "dispatch": {"planner.train", "planner.dispatch", "planner.plan", "planner.store", "ray"},
    # Clusters of hundreds of node types: numpy has them in two seconds.
    "reach.py": {"numpy", "planner.plan"},
    "report": {
        "planner.plan",
        "planner.cluster.reach",
        "planner.store",
        "planner.provenance.audit",
        "planner.provenance.identity",
        "planner.recipes",
    },
    "cli": {"typer", "rich", "planner.store", "planner.report"},
    "errors.py": set(),
    "heartbeat.py": set(),
    "cadence.py": set(),
    "job.py": {"pydantic", "pydantic_core"},
    "lengths.py": set(),
    "limits.py": set(),
    "cluster.py": set(),
    "reminders.py": set(),
    "disk.py": set(),
    "formats.py": set(),
    "privacy.py": set(),
    "extras.py": set(),
    "files": {"yaml", "pydantic"},
    "notice": set(),
    "recipes": {"yaml", "planner.files", "planner.plan"},
    "identity.py": {"planner.data", "planner.order", "planner.plan", "planner.store"},
    "verify.py": {"planner.provenance.audit", "planner.plan", "planner.store"},
    "own.py": {"planner.files", "planner.train"},
    "model_files.py": set(),
    "audit.py": {"planner.data", "planner.order", "planner.plan", "planner.store", "planner.provenance.identity"},
    "__init__.py": set(),
}


def modules_of(room: str) -> list[Path]:
    place = PACKAGE / room
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


def imports_at_module_level(file: Path) -> set[str]:
    """Every module named outside of functions and `if TYPE_CHECKING`."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names.add(node.module or "")
            if node.module == "planner":
                names |= {f"planner.{alias.name}" for alias in node.names}
    return names


def allowed(name: str, room: str) -> bool:
    own = f"planner.{room.removesuffix('.py')}"
    roots = {*LAW[room], own}
    within = any(name == root or name.startswith(f"{root}.") for root in roots)
    return within or name in VALUES or name.partition(".")[0] in STANDARD


def test_every_file_belongs_to_a_room():
    """A new room must say in the law what it may know."""
    rooms = {p.name for p in PACKAGE.iterdir() if p.suffix == ".py" or (p.is_dir() and (p / "__init__.py").exists())}
    assert rooms == set(LAW)


@pytest.mark.parametrize("room", LAW)
def test_a_room_imports_only_what_the_law_allows(room):
    """Imports point one way."""
    wrong = [
        f"{file.relative_to(PACKAGE)} imports {name}"
        for file in modules_of(room)
        for name in sorted(imports_at_module_level(file))
        if not allowed(name, room)
    ]
    assert not wrong


def test_the_plan_room_is_pure():
    """No clock, no dice, no files: a plan is a function of its arguments."""
    used = {name.partition(".")[0] for file in modules_of("plan") for name in imports_at_module_level(file)}
    assert not used & NOT_PURE


# Library -> the rooms that may name it, also inside functions.
HEAVY = {
    "ray": {"dispatch"},
    "torch": {"train", "dispatch", "cli"},
    "transformers": {"train", "data"},
    "peft": {"train"},
    "safetensors": {"train"},
}


@pytest.mark.parametrize("library", HEAVY)
def test_heavy_libraries_are_named_in_one_room_each(library):
    """Anywhere in the text, also inside functions: Ray only in dispatch, torch only in train and its callers."""
    may = HEAVY[library]
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0]
        for node in ast.walk(ast.parse(file.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            if any(name.partition(".")[0] == library for name in names):
                assert room in may, f"{file.relative_to(PACKAGE)} imports {library}"


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("planner", {"torch", "ray", "numpy"}),
        ("planner.plan", {"torch", "ray", "numpy"}),
        ("planner.files", {"torch", "ray", "numpy"}),
        ("planner.notice.agent", {"torch", "ray", "numpy"}),
        ("planner.recipes", {"torch", "ray", "numpy"}),
        ("planner.cli", {"torch", "ray", "numpy"}),
        ("planner.order.order", {"torch", "ray"}),
        ("planner.data", {"torch", "ray"}),
        ("planner.store.run", {"torch", "ray"}),
        ("planner.provenance.audit", {"torch", "ray"}),
        ("planner.train.generation", {"ray"}),
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


def test_the_plan_room_needs_the_standard_library_alone():
    """By loaded modules: neither itself nor what it imports brings pydantic, or any other package."""
    code = [sys.executable, "-c", LOADED_BY_PLAN]
    loaded = set(subprocess.run(code, capture_output=True, text=True, check=True).stdout.split())
    ours = {name for name in loaded if name.partition(".")[0] == "planner"}
    assert {f"planner.plan.{file.stem}" for file in modules_of("plan") if file.stem != "__init__"} <= ours
    assert {name.partition(".")[0] for name in loaded} <= {"planner", *STANDARD}
    within = {name for name in ours if name != "planner.plan" and not name.startswith("planner.plan.")}
    assert within == {"planner", "planner.errors", "planner.plan.limits"}
