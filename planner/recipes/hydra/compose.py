"""Composes a configuration as Hydra 1.3 does, from a folder of YAML, defaults lists, overrides and interpolations.

It refuses what Hydra refuses, and the few forms of Hydra's that it does not read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.files.messages import cut
from planner.recipes.config_reader import recipe_error
from planner.recipes.entries import Entry
from planner.recipes.hydra import files
from planner.recipes.hydra.apply import apply
from planner.recipes.hydra.defaults import Defaults
from planner.recipes.hydra.grammar import NoOverride, Override, parse
from planner.recipes.hydra.interpolation import resolve
from planner.recipes.hydra.tree import Tree, copied, flat, merge, nested
from planner.recipes.scalars import Unresolved, has_shell, scalar

__all__ = ["Composed", "Override", "compose", "parse_overrides", "resolve"]

_ENVIRONMENT = re.compile(r"\$\{oc\.env:([A-Za-z0-9_]+)(?:,[^${}]*)?\}")
_KEY = re.compile(r"(\+\+|\+|~)?([A-Za-z0-9_$][A-Za-z0-9_./@$-]*)=(.*)", re.DOTALL)
# Hydra's settings that decide which configuration a run reads, or that it makes several runs.
_DECISIVE = ("hydra.searchpath", "hydra.mode")


@dataclass(kw_only=True)
class Composed:
    """A configuration as dotted keys, and the file chosen for each group."""

    entries: dict[str, Entry] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    """arguments of the command line that are no overrides, such as `$MODEL_ARGS`"""
    hydras: list[str] = field(default_factory=list)
    """overrides of Hydra's own settings, such as `hydra.run.dir=out`, as written"""
    deleted: list[str] = field(default_factory=list)
    """keys and groups that `~key` removes"""
    used: set[str] = field(default_factory=set)
    """keys that an interpolation reads"""


def parse_overrides(arguments: Sequence[str]) -> tuple[list[Override], list[str]]:
    """The overrides among the arguments, and the other arguments."""
    overrides, others = [], []
    for argument in arguments:
        try:
            its = parse(argument)
            overrides.append(replace(its, value=_unset(its.value)))
        except NoOverride:
            # A value with a shell variable in it may be no value of Hydra's yet.
            found = _KEY.fullmatch(argument)
            if found and has_shell(found[3]):
                unset = Unresolved(found[3], _UNSET)
                overrides.append(Override(sign=found[1] or "", key=found[2], value=unset, text=argument))
            else:
                others.append(argument)
    return overrides, others


_UNSET = "a shell variable that the file does not set"


def _unset(value: Any) -> Any:
    return Unresolved(value, _UNSET) if isinstance(value, str) and has_shell(value) else value


def compose(
    base: Mapping[str, Entry],
    folder: Path | None,
    arguments: Sequence[str],
    *,
    source: str,
    groups: Sequence[str],
    env: Mapping[str, str],
    primary: str = "config",
    new: Sequence[str] = (),
) -> Composed:
    """The configuration that Hydra would compose.

    Args:
        base: the keys of the files if there is no folder. A key that is not in them needs a `+`, as in Hydra.
        folder: the folder with the primary file and the groups' folders.
        arguments: overrides and choices of the command line.
        source: the recipe, for messages.
        groups: names of Hydra's groups if there is no folder.
        env: values for `${oc.env:NAME}`.
        primary: the name of the primary file.
        new: keys that the command may set without `+` although `base` lacks them: those of a fork.

    Raises:
        RecipeError: a file is missing, or Hydra would refuse an override.
    """
    overrides, others = parse_overrides(arguments)
    _refuse_sweeps(overrides, source)
    made = Composed(arguments=others, hydras=[its.text for its in overrides if _is_hydras(its)])
    mine = [its for its in overrides if not _is_hydras(its)]
    if folder is None:
        tree, chosen = _of_base(base, mine, groups, source)
        made.choices = chosen
    else:
        tree = _of_folder(made, folder, primary, mine, source)
    keyed = [its for its in mine if not _is_choice(its, folder, groups)]
    apply(tree, keyed, source, new, is_whole=folder is not None or not groups)
    made.deleted = [its.key for its in mine if its.sign == "~"]
    entries = {key: _in_environment(its, env) for key, its in flat(tree, source).items()}
    made.entries = resolve(entries, used=made.used)
    return made


def _is_hydras(override: Override) -> bool:
    """Whether an override is of Hydra's own settings. Every program that uses Hydra takes these."""
    return override.key.startswith(("hydra.", "hydra/"))


def _refuse_sweeps(overrides: Sequence[Override], source: str) -> None:
    if several := next((its for its in overrides if its.is_sweep), None):
        raise recipe_error(
            source, f"{cut(several.text)}: found several values, which are several runs. Write one value"
        )
    if decisive := next((its for its in overrides if its.key in _DECISIVE), None):
        raise recipe_error(
            source, f"{cut(decisive.text)}: planner reads one run of one folder. Remove it, and write that folder"
        )


def _is_choice(override: Override, folder: Path | None, groups: Sequence[str]) -> bool:
    """Whether an override chooses a group's file. A mapping goes into the section of that name instead."""
    if isinstance(override.value, dict):
        return False
    return override.key in groups if folder is None else files.is_group(folder, override.key)


def _of_base(
    base: Mapping[str, Entry], overrides: Sequence[Override], groups: Sequence[str], source: str
) -> tuple[Tree, dict[str, str]]:
    """The keys without a folder, and the choices of groups."""
    tree, chosen = nested(base), {}
    for its in overrides:
        if not _is_choice(its, None, groups):
            continue
        if its.sign == "~":
            tree.pop(its.key, None)
        elif isinstance(its.value, str | Unresolved) and its.sign != "++" and its.package is None:
            chosen[its.key] = its.value.text if isinstance(its.value, Unresolved) else its.value
        else:
            raise recipe_error(source, f"{cut(its.text)}: {its.key} is a group. Write {its.key}=NAME")
    return tree, chosen


def _of_folder(made: Composed, folder: Path, primary: str, overrides: Sequence[Override], source: str) -> Tree:
    """The merged values of the folder's files. Notes the choices of groups in `made`."""
    defaults = Defaults(folder=folder, source=source)
    defaults.choose([its for its in overrides if _is_choice(its, folder, ())], primary)
    made.choices = defaults.choices
    tree: Tree = {}
    for its in defaults.files:
        # Hydra keeps a file's sections, and merges later files into them, unless they go to a package. So does this,
        # because a file that comes twice is then read as it was changed.
        values = copied(its.file.tree) if its.package else its.file.tree
        for part in reversed(its.package.split(".") if its.package else []):
            values = {part: values}
        merge(tree, values, str(its.path))
    hydras = tree.pop("hydra", {})
    if not isinstance(hydras, dict):
        return tree
    if isinstance(hydras.get("sweeper"), dict) and "params" in hydras["sweeper"]:
        made.hydras.append("hydra.sweeper.params")
    if decisive := next((key for key in _DECISIVE if key[6:] in hydras), None):
        raise recipe_error(source, f"{decisive}: planner reads one run of one folder. Remove it, and write that folder")
    return tree


def _in_environment(entry: Entry, env: Mapping[str, str]) -> Entry:
    """The entry with `${oc.env:NAME}` filled in if `env` has NAME."""
    if not isinstance(entry.value, str) or not _ENVIRONMENT.search(entry.value):
        return entry
    filled = _ENVIRONMENT.sub(lambda found: env.get(found[1], found[0]), entry.value)
    return replace(entry, value=scalar(filled))
