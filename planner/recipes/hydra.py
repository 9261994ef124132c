"""Composes a configuration as Hydra 1.3 does, from a folder of YAML, defaults lists, overrides and interpolations.

It refuses what Hydra refuses, and the few forms of Hydra's that it does not read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from planner.files.messages import cut, quote
from planner.recipes import hydra_files
from planner.recipes.config_reader import recipe_error
from planner.recipes.entries import COMMAND_LINE, Entry
from planner.recipes.hydra_defaults import Defaults
from planner.recipes.hydra_grammar import NoOverride, Override, parse
from planner.recipes.hydra_interpolation import resolve
from planner.recipes.scalars import Unresolved, scalar, shell_names, written

__all__ = ["Composed", "Override", "compose", "parse_overrides", "resolve"]

_ENVIRONMENT = re.compile(r"\$\{oc\.env:([A-Za-z0-9_]+)(?:,[^${}]*)?\}")
_KEY = re.compile(r"(\+\+|\+|~)?([A-Za-z0-9_$][A-Za-z0-9_./@$-]*)=(.*)", re.DOTALL)
# Hydra's settings that decide which configuration a run reads, or that it makes several runs.
_DECISIVE = ("hydra.searchpath", "hydra.mode")
_Tree = dict[str, Any]


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
            if found and shell_names(found[3]):
                unset = Unresolved(found[3], _UNSET)
                overrides.append(Override(sign=found[1] or "", key=found[2], value=unset, text=argument))
            else:
                others.append(argument)
    return overrides, others


_UNSET = "a shell variable that the file does not set"


def _unset(value: Any) -> Any:
    return Unresolved(value, _UNSET) if isinstance(value, str) and shell_names(value) else value


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
    _apply(tree, keyed, source, new, is_whole=folder is not None or not groups)
    made.deleted = [its.key for its in mine if its.sign == "~"]
    entries = {key: _in_environment(its, env) for key, its in _flat(tree, source).items()}
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
    return override.key in groups if folder is None else hydra_files.is_group(folder, override.key)


def _of_base(
    base: Mapping[str, Entry], overrides: Sequence[Override], groups: Sequence[str], source: str
) -> tuple[_Tree, dict[str, str]]:
    """The keys without a folder, and the choices of groups."""
    tree, chosen = _nested(base), {}
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


def _of_folder(made: Composed, folder: Path, primary: str, overrides: Sequence[Override], source: str) -> _Tree:
    """The merged values of the folder's files. Notes the choices of groups in `made`."""
    defaults = Defaults(folder=folder, source=source)
    defaults.choose([its for its in overrides if _is_choice(its, folder, ())], primary)
    made.choices = defaults.choices
    tree: _Tree = {}
    for its in defaults.files:
        # Hydra keeps a file's sections, and merges later files into them, unless they go to a package. So does this,
        # because a file that comes twice is then read as it was changed.
        values = _copied(its.file.tree) if its.package else its.file.tree
        for part in reversed(its.package.split(".") if its.package else []):
            values = {part: values}
        _merge(tree, values, str(its.path))
    hydras = tree.pop("hydra", {})
    if not isinstance(hydras, dict):
        return tree
    if isinstance(hydras.get("sweeper"), dict) and "params" in hydras["sweeper"]:
        made.hydras.append("hydra.sweeper.params")
    if decisive := next((key for key in _DECISIVE if key[6:] in hydras), None):
        raise recipe_error(source, f"{decisive}: planner reads one run of one folder. Remove it, and write that folder")
    return tree


def _merge(tree: _Tree, values: _Tree, where: str) -> None:
    """Merges as OmegaConf does: sections key by key, all else is replaced. `???` replaces nothing."""
    for key, new in values.items():
        old = tree.get(key)
        if old is None:
            tree[key] = new
        elif isinstance(new, Entry):
            if isinstance(new.value, list) and (isinstance(old, dict) or _is_interpolated(old)):
                raise recipe_error(where, f"{cut(key)}: found a list for what is a section elsewhere. Write a section")
            if new.value != "???":
                tree[key] = new
        elif isinstance(old, dict):
            _merge(old, new, where)
        elif isinstance(old.value, list) or _is_interpolated(old):
            raise recipe_error(where, f"{cut(key)}: found a section for {cut(str(old.value))}. Write one of the two")
        else:
            tree[key] = new


def _copied(tree: _Tree) -> _Tree:
    return {key: _copied(its) if isinstance(its, dict) else its for key, its in tree.items()}


def _is_interpolated(value: _Tree | Entry) -> bool:
    return isinstance(value, Entry) and isinstance(value.value, str) and "${" in value.value


def _nested(entries: Mapping[str, Entry]) -> _Tree:
    """Dotted keys as sections. An empty mapping is an empty section."""
    tree: _Tree = {}
    for key, entry in entries.items():
        *path, last = key.split(".")
        section = tree
        for name in path:
            below = section.get(name)
            section[name] = section = below if isinstance(below, dict) else {}
        section[last] = {} if entry.value == {} and isinstance(entry.value, dict) else entry
    return tree


def _flat(tree: _Tree, source: str, prefix: str = "") -> dict[str, Entry]:
    """Sections as dotted keys."""
    made: dict[str, Entry] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Entry):
            made[name] = value
        elif value:
            made |= _flat(value, source, f"{name}.")
        else:
            made[name] = Entry(value={}, where=source)
    return made


def _in_environment(entry: Entry, env: Mapping[str, str]) -> Entry:
    """The entry with `${oc.env:NAME}` filled in if `env` has NAME."""
    if not isinstance(entry.value, str) or not _ENVIRONMENT.search(entry.value):
        return entry
    filled = _ENVIRONMENT.sub(lambda found: env.get(found[1], found[0]), entry.value)
    return replace(entry, value=scalar(filled))


# -- overrides of keys


def _apply(tree: _Tree, overrides: Sequence[Override], source: str, new: Sequence[str], *, is_whole: bool) -> None:
    """Applies overrides in their order. Raises an error with a line for each unknown key.

    `is_whole` is false if the tree has the defaults of a system in place of the configuration that the command reads.
    """
    known, unknown = list(_flat(tree, source)), []
    for its in overrides:
        if its.package is not None:
            raise recipe_error(
                source, f"{cut(its.text)}: no group of the configuration is called {cut(its.key)}. Correct it"
            )
        may_be_new = bool(its.sign) or its.key in new
        if its.sign == "~":
            _delete(tree, its, source)
        elif not may_be_new and _place(tree, its.key)[1] is None:
            unknown.append(_no_such_key(its, known, is_whole=is_whole))
        else:
            _set(tree, its, source, may_be_new=may_be_new)
    if unknown:
        raise recipe_error(source, *unknown)


def _place(tree: _Tree, key: str) -> tuple[_Tree | None, Any]:
    """The section that has a key, and what is at the key: a section, an `Entry`, or None if nothing is.

    The section is None if a part of the key is a value, so that nothing can be below it.
    """
    *path, last = key.split(".")
    section = tree
    for name in path:
        below = section.get(name, {})
        if not isinstance(below, dict):
            return None, None
        if name not in section:
            return {}, None
        section = below
    return section, section.get(last)


def _delete(tree: _Tree, override: Override, source: str) -> None:
    section, old = _place(tree, override.key)
    value = _value(old)
    if section is None or old is None or value in (None, "???") or _is_interpolated(old):
        raise recipe_error(
            source, f"{cut(override.text)}: the configuration has no value there, so Hydra refuses it. Remove it"
        )
    if override.value is not None and override.value != value:
        raise recipe_error(
            source,
            f"{cut(override.text)}: the value is {cut(written(value))}, so Hydra refuses it. Write ~{override.key}",
        )
    del section[override.key.rpartition(".")[2]]


def _value(old: _Tree | Entry | None) -> Any:
    """A section or an entry as a value, as in YAML."""
    if isinstance(old, Entry):
        return old.value.text if isinstance(old.value, Unresolved) else old.value
    return None if old is None else {key: _value(its) for key, its in old.items()}


def _set(tree: _Tree, override: Override, source: str, *, may_be_new: bool) -> None:
    section, old = _place(tree, override.key)
    is_container = isinstance(override.value, dict | list)
    if section is None:
        above = override.key.rpartition(".")[0]
        raise recipe_error(source, f"{cut(override.text)}: {cut(above)} is no section. Write another key")
    has_value = old is not None and _value(old) not in (None, "???")
    if override.sign == "+" and has_value and (not is_container or (old is not None and _is_interpolated(old))):
        raise recipe_error(
            source,
            f"{cut(override.text)}: {cut(override.key)} has a value, so Hydra refuses it. Remove the + or write ++",
        )
    *path, last = override.key.split(".")
    section = tree
    for name in path:
        section = section.setdefault(name, {})
    new = _entries_of(override.value, source)
    if is_container and old is not None and isinstance(old, dict) != isinstance(new, dict):
        is_kept = isinstance(old, Entry) and not isinstance(old.value, list) and not _is_interpolated(old)
        if not is_kept:
            raise recipe_error(
                source, f"{cut(override.text)}: found a list for a section, or a section for a list. Correct it"
            )
        section[last] = new
    elif isinstance(old, dict) and isinstance(new, dict):
        _update(old, new, override, source, may_be_new=may_be_new)
    else:
        section[last] = new


def _update(old: _Tree, new: _Tree, override: Override, source: str, *, may_be_new: bool) -> None:
    """Merges a mapping of the command line into a section. Without `+` it may have no new key."""
    if not may_be_new and (unknown := _unknown_in(old, new)):
        raise recipe_error(source, f"{cut(override.text)}: {cut(unknown)} is not in it, so Hydra refuses it. Write +")
    _merge(old, new, source)


def _unknown_in(old: _Tree, new: _Tree) -> str:
    """The first key that the section does not have, empty if it has all."""
    for key, value in new.items():
        if key not in old:
            return key
        if isinstance(value, dict) and isinstance(old[key], dict) and (below := _unknown_in(old[key], value)):
            return f"{key}.{below}"
    return ""


def _entries_of(value: Any, source: str) -> _Tree | Entry:
    """A value of the command line as a section or an `Entry`."""
    if not isinstance(value, dict):
        return Entry(value=value, where=COMMAND_LINE)
    if any("." in key for key in value):
        raise recipe_error(source, f"found a dot in a key of {cut(str(value))}. Write a section")
    return {key: _entries_of(its, source) for key, its in value.items()}


def _no_such_key(override: Override, known: Sequence[str], *, is_whole: bool) -> str:
    key = override.key
    near = get_close_matches(key, known, cutoff=0.7) or [name for name in known if key in name.split(".")]
    # The DPO repository's datasets is train_datasets or test_datasets in HALOs. Suggest the first.
    near.sort(key=lambda name: name != f"train_{key}")
    if not near and not is_whole:
        return (
            f"{cut(key)}: not a key of the system whose command this is. If a fork of it has the key, run planner in "
            f"the checkout of the fork. Otherwise write +{cut(key)}=... for a new key"
        )
    hint = f"Did you mean {near[0]}? Otherwise write" if near else "Write"
    return (
        f"{cut(key)}: not a key of that configuration, so Hydra refuses {quote(f'{key}={_shown(override.value)}')}. "
        f"{hint} +{cut(key)}=... for a new key"
    )


def _shown(value: Any) -> str:
    return value.text if isinstance(value, Unresolved) else written(value)
