"""Expands Hydra's defaults lists into the files of a configuration, in the order in which Hydra merges them.

Written after Hydra 1.3 (`hydra/_internal/defaults_list.py`). Lists with interpolations are refused.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.files.messages import cut
from planner.recipes.config_reader import recipe_error
from planner.recipes.hydra.files import HydraFile, is_there, options_of, path_of, read
from planner.recipes.hydra.grammar import Override

_MAX_DEPTH = 10
_SELF = "_self_"


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A file of the configuration, and the section that its values go to."""

    file: HydraFile
    path: Path
    package: str
    """dotted, empty for the top"""


@dataclass(frozen=True, kw_only=True)
class _Item:
    """An item of a defaults list, below the group and the package of the file that contains it."""

    name: Any
    """the file's name, a list of them, or None"""
    group: str | None = None
    """the group as written, None for a file by its path"""
    package: str | None = None
    is_optional: bool = False
    is_override: bool = False
    is_appended: bool = False
    base: str = ""
    """the group of the file that contains the item"""
    parent: str = ""
    """the package of that file"""

    @property
    def is_self(self) -> bool:
        """Whether the item is the file's own values."""
        return bool(self.name == _SELF)

    @property
    def is_hydras(self) -> bool:
        """Whether the item is of Hydra's own groups, such as `hydra/job_logging`, which hold no key of the program."""
        return self.group is not None and self.group.removeprefix("/").startswith("hydra/")

    @property
    def group_path(self) -> str:
        """The group's folder."""
        written = self.group if self.group is not None else str(self.name).rpartition("/")[0]
        if (self.group or str(self.name)).startswith("/"):
            return written.removeprefix("/")
        return "/".join(filter(None, (self.base, written)))

    @property
    def path(self) -> str:
        """The file's name below the folder of the configuration."""
        return "/".join(filter(None, (self.group_path, str(self.name).rpartition("/")[2])))

    def package_with(self, header: str | None) -> str:
        """The section that the file's values go to, with the package in its header."""
        package = self.package
        if package is None and header is not None:
            package = header if header.startswith("_global_") else f"_global_.{header}"
        if package is None:
            written = self.group if self.group is not None else str(self.name).removeprefix("/").rpartition("/")[0]
            package = written.removeprefix("/").replace("/", ".")
        whole = ".".join(filter(None, (self.parent, package)))
        return whole.rpartition("_global_")[2].removeprefix(".")

    @property
    def key(self) -> str:
        """By what an override chooses this item: `model`, or `model@package` if its package is another one."""
        package = self.package_with(None)
        is_usual = package == self.group_path.replace("/", ".")
        return self.group_path if is_usual else f"{self.group_path}@{package or '_global_'}"


@dataclass(kw_only=True)
class Defaults:
    """The files of a configuration, and what its groups are set to."""

    folder: Path
    source: str
    files: list[Merged] = field(default_factory=list)
    choices: dict[str, str] = field(default_factory=dict)
    """group, or `group@package` -> the file's name, without groups that are null"""
    _known: dict[str, Any] = field(default_factory=dict)
    _chosen: dict[str, Any] = field(default_factory=dict)
    """what overrides set groups to. The first one wins: the command line, then the primary file, then those below"""
    _unused: dict[str, str] = field(default_factory=dict)
    _deleted: dict[str, Any] = field(default_factory=dict)
    _read: dict[str, HydraFile] = field(default_factory=dict)

    def choose(self, overrides: Sequence[Override], primary: str) -> None:
        """Read the primary file and all that its defaults list leads to.

        Args:
            overrides: those of groups.
            primary: the name of the primary file, without `.yaml`.

        Raises:
            RecipeError: a file is missing, or Hydra would refuse the list or an override.
        """
        appended = []
        for its in overrides:
            key = its.key if its.package is None else f"{its.key}@{its.package}"
            if its.sign == "++":
                raise recipe_error(self.source, f"{cut(its.text)}: Hydra takes no ++ before a group. Write {key}=NAME")
            if its.sign == "~":
                self._deleted[key] = its.value
                self._unused[f"~{key}"] = its.text
            elif its.sign == "+":
                self._refuse_names(its)
                appended.append(_Item(group=its.key, name=its.value, package=_here(its.package), is_appended=True))
            else:
                self._refuse_names(its)
                self._chosen[key] = its.value
                self._unused[key] = its.text
        for item in self._expanded(_Item(name=primary), appended, depth=0):
            self._add(item)
        if self._unused:
            text = next(iter(self._unused.values()))
            raise recipe_error(
                self.source, f"{cut(text)}: no defaults list has that group, so Hydra refuses it. Write +GROUP=NAME"
            )

    def _refuse_names(self, override: Override) -> None:
        if not isinstance(override.value, str | list):
            raise recipe_error(
                self.source, f"{cut(override.text)}: {cut(override.key)} is a group. Write the name of one of its files"
            )

    def _add(self, item: _Item) -> None:
        file = self._read[item.path]
        self.files.append(
            Merged(file=file, path=path_of(self.folder, item.path), package=item.package_with(file.package))
        )

    def _expanded(self, item: _Item, appended: Sequence[_Item], depth: int) -> list[_Item]:
        """The files of an item in the order of merging: those of its defaults list, and its own at `_self_`."""
        where = str(path_of(self.folder, item.path))
        if depth > _MAX_DEPTH:
            raise recipe_error(where, f"found defaults nested more than {_MAX_DEPTH} deep. Remove the cycle")
        if item.group is not None and not self._is_taken(item, where):
            return []
        if not is_there(self.folder, item.path):
            if item.is_optional:
                return []
            near = options_of(self.folder, item.group_path)
            raise recipe_error(
                where,
                f"found no such file{f', but these: {near}' if near else ''}. "
                f"Write {cut(item.group_path) or 'config'}=NAME for one that exists",
            )
        file = self._read.setdefault(item.path, read(path_of(self.folder, item.path)))
        for package in (file.package, item.package):
            if package and ("_group_" in package or "_name_" in package):
                raise recipe_error(
                    where, f"found the package {cut(package)}, which planner does not read. Write it out"
                )
        items = [*_items(file.defaults, where, has_more=bool(appended)), *appended]
        package = item.package_with(file.package)
        below = [its if its.is_self else replace(its, base=item.group_path, parent=package) for its in items]
        self._take_overrides(below, where)
        parts = [
            [item] if its.is_self else self._of_list(its, depth, where)
            for its in reversed(below)
            if not (its.is_override or its.is_hydras)
        ]
        return [each for part in reversed(parts) for each in part] if below else [item]

    def _of_list(self, item: _Item, depth: int, where: str) -> list[_Item]:
        """The files of an item in a list, with what overrides set it to."""
        if item.group is not None and item.key in self._chosen:
            key = item.key
            item = replace(item, name=self._chosen[key])
            self._unused.pop(key, None)
        if isinstance(item.name, list):
            paths = [replace(item, name=f"{item.group}/{name}", group=None) for name in item.name]
            parts = [self._expanded(each, (), depth + 1) for each in reversed(paths)]
            return [each for part in reversed(parts) for each in part]
        if "${" in str(item.name) or "${" in str(item.group):
            raise recipe_error(where, f"defaults: found {cut(str(item.name))}, an interpolation. Write the file's name")
        return self._expanded(item, (), depth + 1)

    def _is_taken(self, item: _Item, where: str) -> bool:
        """Whether a group has a file. Notes its name, and refuses two names for one group."""
        key = item.key
        if key in self._deleted and self._deleted[key] in (None, item.name):
            self._unused.pop(f"~{key}", None)
            return False
        if self._known.setdefault(key, item.name) != item.name:
            raise recipe_error(
                where, f"defaults: {cut(key)} is {self._known[key]} and {item.name}, which Hydra refuses. Remove one"
            )
        if item.name is None:
            return False
        if item.name == "???":
            near = options_of(self.folder, item.group_path)
            raise recipe_error(
                where,
                f"defaults.{cut(key)}: found ???. Write {cut(key)}=NAME behind the recipe"
                + (f" ({near})" if near else ""),
            )
        if key in self.choices:
            raise recipe_error(where, f"defaults: {cut(key)} comes twice, which Hydra refuses. Remove one")
        self.choices[key] = str(item.name)
        return True

    def _take_overrides(self, items: Sequence[_Item], where: str) -> None:
        """Notes the `override` items of a list. Hydra wants them at its end."""
        seen = False
        for item in items:
            if item.is_override:
                seen = True
                if item.is_hydras and not re.fullmatch(r"hydra/[^@]*", item.key):
                    raise recipe_error(where, f"defaults: no list has {cut(item.key)}, so Hydra refuses it. Remove it")
                if item.key not in self._chosen and not item.is_hydras:
                    self._chosen[item.key] = item.name
                    self._unused[item.key] = f"override {item.key}: {item.name} in {where}"
            elif seen and not item.is_self and not item.is_appended:
                raise recipe_error(
                    where, "defaults: found an override before other items. Write it last, as Hydra wants"
                )


def _items(defaults: list[Any] | None, where: str, *, has_more: bool) -> list[_Item]:
    """The items of a defaults list, with `_self_` at its end if it is not in it."""
    items = [_item(item, where) for item in defaults or []]
    if not defaults and not has_more:
        return []
    selves = sum(its.is_self for its in items)
    if selves > 1:
        raise recipe_error(where, "defaults: found _self_ twice, which Hydra refuses. Remove one")
    return items if selves else [*items, _Item(name=_SELF)]


def _item(item: Any, where: str) -> _Item:
    if isinstance(item, str):
        path, _, package = item.partition("@")
        if path == _SELF and package:
            raise recipe_error(where, "defaults: found a package for _self_, which Hydra refuses. Remove it")
        return _Item(name=path, package=_here(package or None))
    if not isinstance(item, dict) or len(item) != 1:
        raise recipe_error(where, "defaults: found an item that is neither a name nor GROUP: NAME. Correct it")
    ((key, name),) = item.items()
    *words, group = str(key).split(" ")
    if not set(words) <= {"optional", "override"} or not group:
        raise recipe_error(where, f"defaults: found {cut(str(key))}. Write GROUP: NAME")
    if name is not None and not isinstance(name, str | list):
        raise recipe_error(where, f"defaults.{cut(group)}: found {cut(str(name))}. Write the name of a file")
    group, _, package = group.partition("@")
    return _Item(
        group=group,
        name=name,
        package=_here(package or None),
        is_optional="optional" in words,
        is_override="override" in words,
    )


def _here(package: str | None) -> str | None:
    return "" if package == "_here_" else package
