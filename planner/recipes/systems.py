"""All systems: those that planner knows, and those that installed packages add (`planner.recipes`)."""

from dataclasses import replace
from typing import Any

from planner.base.plugins import Plugin, installed
from planner.errors import PlannerError, UserError
from planner.recipes import accelerate_system, deepspeed_system, hydra_systems, ours, torchtitan, trl_system
from planner.recipes.recipe import Recipe, Rewrite
from planner.recipes.system import System

GROUP = "planner.recipes"
READ = (trl_system.SYSTEM, deepspeed_system.SYSTEM, accelerate_system.SYSTEM, hydra_systems.DPO, hydra_systems.HALOS)
"""in the order in which they are asked"""
WRITTEN = (
    hydra_systems.DPO,
    hydra_systems.HALOS,
    trl_system.SYSTEM,
    accelerate_system.SYSTEM,
    deepspeed_system.SYSTEM,
    torchtitan.SYSTEM,
)
"""in the order in which they are listed"""
KNOWN = {system.name: system for system in (ours.SYSTEM, *READ, *WRITTEN)}
_MAKES = {"detect": object, "read": Recipe, "near_miss": str, "render": Rewrite, "render_command": object}
"""what the functions of a system return; of `detect` its truth counts, of `render_command` nothing"""
TARGETS = tuple(system.name for system in WRITTEN)


def targets() -> tuple[str, ...]:
    """The names that `--to` takes: those that planner knows, then those of installed packages."""
    return (*TARGETS, *(name for name in installed(GROUP) if name not in KNOWN))


def named(target: str) -> System:
    """The system that `--to` names.

    Raises:
        UserError: there is none, or it cannot be written to.
        PlannerError: an installed package has it and cannot be loaded; the message names the package.
    """
    system = KNOWN.get(target)
    if system is None:
        plugin = installed(GROUP).get(target)
        if plugin is None:
            raise UserError(f"--to {target}: found no such system; write {' or '.join(targets())}")
        system = _loaded(target, plugin)
    if system.render is None:
        raise UserError(f"--to {target}: recipes of {system.title} are only read")
    return system


def added() -> tuple[list[System], list[PlannerError]]:
    """What installed packages add, and why some of them are of no use."""
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
