"""Applies the overrides of a command line to a configuration, as Hydra does, and refuses what Hydra refuses."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from planner.files.messages import cut, quote
from planner.recipes.config_reader import recipe_error
from planner.recipes.entries import COMMAND_LINE, Entry
from planner.recipes.hydra.grammar import Override
from planner.recipes.hydra.tree import Tree, flat, is_interpolated, merge
from planner.recipes.scalars import Unresolved, written


def apply(tree: Tree, overrides: Sequence[Override], source: str, new: Sequence[str], *, is_whole: bool) -> None:
    """Applies overrides in their order. Raises an error with a line for each unknown key.

    `is_whole` is false if the tree has the defaults of a system in place of the configuration that the command reads.
    """
    known, unknown = list(flat(tree, source)), []
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


def _place(tree: Tree, key: str) -> tuple[Tree | None, Any]:
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


def _delete(tree: Tree, override: Override, source: str) -> None:
    section, old = _place(tree, override.key)
    value = _value(old)
    if section is None or old is None or value in (None, "???") or is_interpolated(old):
        raise recipe_error(
            source, f"{cut(override.text)}: the configuration has no value there, so Hydra refuses it. Remove it"
        )
    if override.value is not None and override.value != value:
        raise recipe_error(
            source,
            f"{cut(override.text)}: the value is {cut(written(value))}, so Hydra refuses it. Write ~{override.key}",
        )
    del section[override.key.rpartition(".")[2]]


def _value(old: Tree | Entry | None) -> Any:
    """A section or an entry as a value, as in YAML."""
    if isinstance(old, Entry):
        return old.value.text if isinstance(old.value, Unresolved) else old.value
    return None if old is None else {key: _value(its) for key, its in old.items()}


def _set(tree: Tree, override: Override, source: str, *, may_be_new: bool) -> None:
    section, old = _place(tree, override.key)
    is_container = isinstance(override.value, dict | list)
    if section is None:
        above = override.key.rpartition(".")[0]
        raise recipe_error(source, f"{cut(override.text)}: {cut(above)} is no section. Write another key")
    has_value = old is not None and _value(old) not in (None, "???")
    if override.sign == "+" and has_value and (not is_container or (old is not None and is_interpolated(old))):
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
        is_kept = isinstance(old, Entry) and not isinstance(old.value, list) and not is_interpolated(old)
        if not is_kept:
            raise recipe_error(
                source, f"{cut(override.text)}: found a list for a section, or a section for a list. Correct it"
            )
        section[last] = new
    elif isinstance(old, dict) and isinstance(new, dict):
        _update(old, new, override, source, may_be_new=may_be_new)
    else:
        section[last] = new


def _update(old: Tree, new: Tree, override: Override, source: str, *, may_be_new: bool) -> None:
    """Merges a mapping of the command line into a section. Without `+` it may have no new key."""
    if not may_be_new and (unknown := _unknown_in(old, new)):
        raise recipe_error(source, f"{cut(override.text)}: {cut(unknown)} is not in it, so Hydra refuses it. Write +")
    merge(old, new, source)


def _unknown_in(old: Tree, new: Tree) -> str:
    """The first key that the section does not have, empty if it has all."""
    for key, value in new.items():
        if key not in old:
            return key
        if isinstance(value, dict) and isinstance(old[key], dict) and (below := _unknown_in(old[key], value)):
            return f"{key}.{below}"
    return ""


def _entries_of(value: Any, source: str) -> Tree | Entry:
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
            f"{cut(key)}: not a key of the system whose command this is. Run planner in the checkout of the fork that "
            f"has it, or write +{cut(key)}=... for a new key"
        )
    hint = f"Write {near[0]} if you mean that, or" if near else "Write"
    return (
        f"{cut(key)}: not a key of that configuration, so Hydra refuses {quote(f'{key}={_shown(override.value)}')}. "
        f"{hint} +{cut(key)}=... for a new key"
    )


def _shown(value: Any) -> str:
    return value.text if isinstance(value, Unresolved) else written(value)
