"""A configuration as nested sections with an `Entry` for each value, and how Hydra merges two of them."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from planner.files.messages import cut
from planner.recipes.config_reader import recipe_error
from planner.recipes.entries import Entry

Tree: TypeAlias = dict[str, Any]
"""name -> a `Tree` (a section) or an `Entry`. A list is one value"""


def merge(tree: Tree, values: Tree, where: str) -> None:
    """Merges as OmegaConf does: sections key by key, all else is replaced. `???` replaces nothing."""
    for key, new in values.items():
        old = tree.get(key)
        if old is None:
            tree[key] = new
        elif isinstance(new, Entry):
            if isinstance(new.value, list) and (isinstance(old, dict) or is_interpolated(old)):
                raise recipe_error(where, f"{cut(key)}: found a list for what is a section elsewhere. Write a section")
            if new.value != "???":
                tree[key] = new
        elif isinstance(old, dict):
            merge(old, new, where)
        elif isinstance(old.value, list) or is_interpolated(old):
            raise recipe_error(where, f"{cut(key)}: found a section for {cut(str(old.value))}. Write one of the two")
        else:
            tree[key] = new


def copied(tree: Tree) -> Tree:
    """The same entries in sections of their own."""
    return {key: copied(its) if isinstance(its, dict) else its for key, its in tree.items()}


def is_interpolated(value: Tree | Entry) -> bool:
    """Whether a value contains an interpolation."""
    return isinstance(value, Entry) and isinstance(value.value, str) and "${" in value.value


def nested(entries: Mapping[str, Entry]) -> Tree:
    """Dotted keys as sections. An empty mapping is an empty section."""
    tree: Tree = {}
    for key, entry in entries.items():
        *path, last = key.split(".")
        section = tree
        for name in path:
            below = section.get(name)
            section[name] = section = below if isinstance(below, dict) else {}
        section[last] = {} if entry.value == {} and isinstance(entry.value, dict) else entry
    return tree


def flat(tree: Tree, source: str, prefix: str = "") -> dict[str, Entry]:
    """Sections as dotted keys."""
    made: dict[str, Entry] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Entry):
            made[name] = value
        elif value:
            made |= flat(value, source, f"{name}.")
        else:
            made[name] = Entry(value={}, where=source)
    return made
