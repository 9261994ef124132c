"""The package's imports, read from its source: module-level, inside functions, and for type checkers alone.

python tests/imports/import_graph.py        circles, long functions, and what reaches torch or ray
"""

import ast
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal

PACKAGE = Path(__file__).parents[2] / "planner"
HEAVY = ("torch", "ray")
_IMPORTERS = {"import_module", "__import__", "run_module", "exec_module"}

Scope = Literal["module", "function", "types"]


@dataclass(frozen=True, kw_only=True)
class Import:
    """One name that a module asks for."""

    by: str
    """the module, such as `planner.plan.node_packing`"""
    name: str
    """a module of ours in full, or whatever stands there of another package"""
    scope: Scope

    @property
    def package(self) -> str:
        """Whose it is: `planner`, `torch`, ..."""
        return self.name.partition(".")[0]


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its name."""
    found = {".".join(("planner", *file.relative_to(PACKAGE).with_suffix("").parts)): file for file in _files()}
    return {name.removesuffix(".__init__"): file for name, file in found.items()}


def _files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(module: str) -> str:
    """`planner.train.models.hf` -> `train`; the package's own `__init__` -> `planner`."""
    return module.split(".")[1] if "." in module else module


@cache
def imports() -> tuple[Import, ...]:
    """All of them, those inside functions and under `TYPE_CHECKING` included."""
    return tuple(
        Import(by=module, name=name, scope=scope)
        for module, file in modules().items()
        for name, scope in _named(ast.parse(file.read_text()), "module")
    )


def _named(node: ast.AST, scope: Scope) -> Iterator[tuple[str, Scope]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, scope) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"imports are absolute: {ast.unparse(child)}"
            yield from ((_module_of(child.module or "", alias.name), scope) for alias in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            yield from _named(ast.Module(body=child.body, type_ignores=[]), "types")
            yield from _named(ast.Module(body=child.orelse, type_ignores=[]), scope)
        else:
            yield from _named(child, _scope_within(child, scope))


def _scope_within(node: ast.AST, scope: Scope) -> Scope:
    return "function" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else scope


def imports_by_name() -> set[str]:
    """The modules that import what a string names: no import statement shows what."""
    return {module for module, file in modules().items() if _calls(ast.parse(file.read_text())) & _IMPORTERS}


def _calls(tree: ast.AST) -> set[str]:
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {ast.unparse(function).rpartition(".")[2] for function in called}


@cache
def modules_in_strings() -> set[tuple[str, str]]:
    """(module, module of ours that a string in it names), such as `planner.train.objectives.dpo:DirectPreference`."""
    return {
        (module, name)
        for module, file in modules().items()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (name := node.value.partition(":")[0]) in modules()
    }


def _module_of(module: str, name: str) -> str:
    """`from planner.plan import fit` asks for a module, `from planner.plan import Plan` for a name in one."""
    return f"{module}.{name}" if f"{module}.{name}" in modules() else module


def circle(scopes: Collection[Scope] = ("module", "function", "types")) -> list[str]:
    """Modules that lead back to the first one; none: []."""
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for each in imports():
        if each.name in graph and each.scope in scopes:
            graph[each.by].add(each.name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def reaches(packages: Collection[str] = HEAVY) -> set[str]:
    """The modules whose import alone, what it imports included, brings one of these packages."""
    found = {each.by for each in imports() if each.scope == "module" and each.package in packages}
    while True:
        more = {by for by, names in _at_import().items() if by not in found and names & found}
        if not more:
            return found
        found |= more


@cache
def _at_import() -> dict[str, set[str]]:
    """Module -> those of ours that Python runs when it is imported: what it names, and the packages these lie in."""
    graph: dict[str, set[str]] = {module: _packages_of(module) for module in modules()}
    for each in imports():
        if each.scope == "module" and each.name in graph:
            graph[each.by] |= {each.name, *_packages_of(each.name)}
    return graph


def _packages_of(module: str) -> set[str]:
    parts = module.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts))}


def long_functions(most: int) -> dict[str, int]:
    """Functions of more lines than that, decorators apart: where -> lines."""
    found = {}
    for file in _files():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > most:
                    found[f"{file.relative_to(PACKAGE)}:{node.name}"] = lines
    return found


def summary() -> str:
    """What the law is about, in figures."""
    total, heavy = len(modules()), len(reaches())
    lazy = sum(each.scope == "function" and each.package == "planner" for each in imports())
    return "\n".join(
        (
            f"modules                       {total}",
            f"circles, lazy ones included   {' -> '.join(circle()) or 0}",
            f"reach torch or ray at import  {heavy} ({heavy / total:.0%})",
            f"our imports inside functions  {lazy}",
            f"functions over 60 lines       {', '.join(f'{k} ({v})' for k, v in long_functions(60).items()) or 0}",
        )
    )


if __name__ == "__main__":
    sys.stdout.write(f"{summary()}\n")
