"""Reads one file of a Hydra configuration: its values, its defaults list and its package, as OmegaConf reads YAML."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.base.disk import is_file, is_folder
from planner.files.loader import BoundedLoader, YamlMistake, document
from planner.files.messages import cut
from planner.recipes.config_reader import mapping_of, recipe_error, text_of
from planner.recipes.entries import Entry

_HEADER = re.compile(r"#+\s*@(\w+) +(\S+)")


@dataclass(frozen=True, kw_only=True)
class HydraFile:
    """A file of a configuration."""

    tree: dict[str, Any]
    """sections as dicts, and an `Entry` for each value"""
    defaults: list[Any] | None
    """the defaults list as written, None if there is none"""
    package: str | None
    """the package in its header `# @package NAME`, None if there is none"""


class _OmegaLoader(BoundedLoader):
    """Reads scalars as OmegaConf 2.3 does: `5e-7` is a number, `010` is 8, `on` is true, and dates are text."""


_OmegaLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"""^(?:[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
        |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
        |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
        |[-+]?\.(?:inf|Inf|INF)
        |\.(?:nan|NaN|NAN))$""",
        re.VERBOSE,
    ),
    list("-+0123456789."),
)
_OmegaLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _OmegaLoader.yaml_implicit_resolvers.items()
}


def read(file: Path) -> HydraFile:
    """The file at a path.

    Raises:
        RecipeError: there is no such file, it is no mapping, or it has a key that planner does not read.
    """
    text = text_of(file)
    values = _values(text, str(file))
    defaults = values.pop("defaults", None)
    if defaults is not None and not isinstance(defaults, list):
        raise recipe_error(str(file), "defaults: found no list. Write a list")
    return HydraFile(tree=tree_of(values, str(file)), defaults=defaults, package=_package(text, str(file)))


def _values(text: str, source: str) -> dict[str, Any]:
    try:
        values = document(text, _OmegaLoader)
    except YamlMistake as error:
        mapping_of(text, source)
        raise recipe_error(source, f"found a mistake ({cut(error.problem, 200)}). Correct it") from None
    if values is None:
        return {}
    mapping_of(text, source)  # refuses what is no mapping, too large or too deep, and a key twice, as OmegaConf does
    found: dict[str, Any] = values
    return found


def _package(text: str, source: str) -> str | None:
    """The package in the comments at the beginning of a file."""
    package = None
    for line in filter(None, map(str.strip, text.splitlines())):
        if not re.match(r"#\s*@", line):
            break
        found = _HEADER.fullmatch(line)
        if found is None:
            raise recipe_error(source, f"found {cut(line)}, which Hydra refuses. Write # @package NAME")
        if found[1] == "package":
            package = found[2]
    return package


def tree_of(values: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Nested mappings with an `Entry` for each value. Lists stay whole.

    Raises:
        RecipeError: a key contains a dot, which in an override would separate sections.
    """
    tree: dict[str, Any] = {}
    for key, value in values.items():
        if "." in str(key):
            raise recipe_error(where, f"{cut(str(key))}: found a dot in a key. Write sections")
        tree[str(key)] = tree_of(value, where) if isinstance(value, dict) else Entry(value=value, where=where)
    return tree


def is_there(folder: Path, name: str) -> bool:
    """Whether the folder of a configuration has a file of this name, with or without `.yaml`."""
    return is_file(path_of(folder, name))


def path_of(folder: Path, name: str) -> Path:
    """The file of a name such as `model/llama`."""
    return folder / (name if name.endswith(".yaml") else f"{name}.yaml")


def is_group(folder: Path, name: str) -> bool:
    """Whether a name, such as `model`, is a group: a folder below that of the configuration."""
    return bool(name) and is_folder(folder / name)


def options_of(folder: Path, group: str) -> str:
    """The names of a group's files for messages, empty if there are none."""
    place = folder / group
    return cut(", ".join(sorted(path.stem for path in place.glob("*.yaml"))), 200) if is_folder(place) else ""
