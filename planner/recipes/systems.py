"""Lists all systems: planner's own, and those of installed packages (entry points of the group `planner.recipes`)."""

from dataclasses import replace
from typing import Any

from planner.base.plugins import Plugin, installed
from planner.base.text import enumerated
from planner.errors import PlannerError, UserError
from planner.recipes import job_system
from planner.recipes.axolotl import system as axolotl
from planner.recipes.deepspeed import system as deepspeed
from planner.recipes.dpo import system as dpo
from planner.recipes.halos import system as halos
from planner.recipes.llamafactory import system as llamafactory
from planner.recipes.recipe import Recipe, Rewrite
from planner.recipes.source import RecipeSource
from planner.recipes.swift import system as swift
from planner.recipes.system import System
from planner.recipes.torchtitan import system as torchtitan
from planner.recipes.torchtune import system as torchtune
from planner.recipes.trainer import accelerate_system
from planner.recipes.trainer import system as trainer
from planner.recipes.trl import system as trl_system

GROUP = "planner.recipes"
MARKED = (axolotl.SYSTEM, llamafactory.SYSTEM, swift.SYSTEM, torchtune.SYSTEM)
"""systems with keys or programs that no other has, which are asked before all others"""
READ = (*MARKED, trl_system.SYSTEM, deepspeed.SYSTEM, accelerate_system.SYSTEM, dpo.SYSTEM, halos.SYSTEM)
"""systems whose recipes planner reads, in the order of detection"""
WRITTEN = (
    dpo.SYSTEM,
    halos.SYSTEM,
    trl_system.SYSTEM,
    accelerate_system.SYSTEM,
    deepspeed.SYSTEM,
    torchtitan.SYSTEM,
    torchtune.SYSTEM,
    axolotl.SYSTEM,
    llamafactory.SYSTEM,
    swift.SYSTEM,
)
"""systems for which planner writes a batch, in the order of listings"""
KNOWN = {system.name: system for system in (job_system.SYSTEM, *READ, *WRITTEN)}
_MAKES = {"detect": object, "read": Recipe, "near_miss": str, "render": Rewrite, "render_command": object,
          "why_not": str}  # fmt: skip
"""the types that a system's functions must return. `detect` and `render_command` may return anything"""
TARGETS = tuple(system.name for system in WRITTEN)
_LISTED = tuple(system for system in READ if system.listed)
PROGRAMS = ", ".join([*(program for system in _LISTED for program in system.programs), "..."])
"""programs that start a training, for refusals"""


def marked(found: RecipeSource) -> System | None:
    """The system of `MARKED` that claims a recipe, of several the one with most of its keys. None if none does."""
    claiming = [system for system in MARKED if system.claims(found)]
    return min(claiming, key=lambda system: sum(system.rules.row(name) is None for name in found.keys), default=None)


def readable() -> str:
    """What planner reads, as text: recipes, its own jobs, and what installed packages add. Imports no package."""
    return _and_added(enumerated([*(f"{system.listed}{system.part}" for system in _LISTED), "its own jobs"]))


def systems_read() -> str:
    """The systems whose recipes planner reads, as text."""
    return _and_added(enumerated([system.listed for system in _LISTED]))


def recognised() -> str:
    """What planner reads and the keys by which it knows a file of each, as text."""
    named = [f"{system.listed} ({', '.join(system.marks)})" for system in _LISTED]
    return _and_added(enumerated([*named, "a planner job (batch.global)"], "or"))


def sizes() -> list[str]:
    """The keys on which a batch depends in some system, without those in sections."""
    rows = (row for system in _LISTED for row in system.rules if "." not in row.name and row.value == "whole")
    return list(dict.fromkeys(row.name for row in rows if row.effect and row.effect.planner == "reads"))


def not_read(text: str) -> str:
    """The refusal of a recipe that no system reads, with what planner reads."""
    return f"{text}. {'It' if 'planner' in text else 'planner'} reads {readable()}"


def _and_added(text: str) -> str:
    added = enumerated([*installed(GROUP)])
    return f"{text}, and installed packages add {added}" if added else text


def targets() -> tuple[str, ...]:
    """The names that `--to` takes: planner's own, then those of installed packages."""
    return (*TARGETS, *(name for name in installed(GROUP) if name not in KNOWN))


def named(target: str) -> System:
    """The system that `--to` names.

    Raises:
        UserError: there is no such system, or planner only reads it.
        PlannerError: the package that adds it cannot be loaded. The message names the package.
    """
    system = KNOWN.get(target)
    if system is None:
        plugin = installed(GROUP).get(target)
        if plugin is None:
            raise UserError(f"--to {target}: found no such system. Write {' or '.join(targets())}")
        system = _loaded(target, plugin)
    if system.render is None:
        raise UserError(f"--to {target}: planner only reads recipes of {system.title}. Write another system")
    return system


def reader(name: str) -> System:
    """The system that `--system` names.

    Raises:
        UserError: there is no such system, or planner does not read its recipes.
    """
    known = {system.name: system for system in (*READ, trainer.SYSTEM)}
    if name not in known:
        raise UserError(f"--system {name[:40]}: found no such system. Write {' or '.join(known)}")
    return known[name]


def added() -> tuple[list[System], list[PlannerError]]:
    """The systems of installed packages, and an error for each package that cannot be used."""
    systems: list[System] = []
    broken: list[PlannerError] = []
    for name, plugin in installed(GROUP).items():
        try:
            systems.append(_loaded(name, plugin))
        except PlannerError as error:
            broken.append(error)
    return systems, broken


def _loaded(name: str, plugin: Plugin) -> System:
    if name in KNOWN:
        raise plugin.error("planner has a system of that name")
    system = plugin.load()
    if not isinstance(system, System) or system.name != name:
        raise plugin.error(f"it is no planner.recipes.System with the name {name}")
    guarded: dict[str, Any] = {
        each: plugin.guarded(function, makes)
        for each, makes in _MAKES.items()
        if (function := getattr(system, each)) is not None
    }
    return replace(system, **guarded)
