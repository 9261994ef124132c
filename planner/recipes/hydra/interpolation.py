"""Fills in the interpolations of a configuration, such as `${a.b}`, `${.b}` and `${..b}`, as OmegaConf does."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planner.files.messages import cut
from planner.recipes.config_reader import recipe_error
from planner.recipes.entries import Entry
from planner.recipes.scalars import Unresolved

_INTERPOLATION = re.compile(r"\$\{([^${}]*)\}")
_NAME = re.compile(r"(\.*)([A-Za-z0-9_$-]+(?:\.[A-Za-z0-9_$-]+)*)")
_MAX_DEPTH = 10
# Far above any real recipe. Each lookup makes at most one text of this length, so the two bound the memory.
_MAX_LOOKUPS = 20_000
_MAX_TEXT = 10_000


@dataclass(frozen=True)
class _Section:
    """What an interpolation to a section gives: its resolved values by their names below it."""

    values: Mapping[str, Any]


def resolve(entries: Mapping[str, Entry], *, used: set[str] | None = None) -> dict[str, Entry]:
    """The entries with interpolations filled in. An interpolation to a section becomes copies of its entries.

    A value that needs a resolver or a missing key becomes `Unresolved`.

    Args:
        entries: dotted keys.
        used: a set to which the names are added that interpolations lead to.

    Raises:
        RecipeError: interpolations expand beyond 20,000 lookups or 10,000 characters.
    """
    sections = {key[:at] for key in entries for at, sign in enumerate(key) if sign == "."}
    resolver = _Resolver(entries=entries, sections=sections)
    made: dict[str, Entry] = {}
    for key, entry in entries.items():
        value = resolver.resolved_at(key, 0)
        if not isinstance(value, _Section):
            made[key] = replace(entry, value=value)
            continue
        for name, each in value.values.items():
            made[f"{key}.{name}"] = replace(entry, value=each)
    if used is not None:
        used |= resolver.used
    return made


_CIRCLE = Unresolved("${...}", "an interpolation that leads back to itself")


@dataclass(kw_only=True)
class _Resolver:
    """Fills in interpolations. It limits their number because a few nested ones can exhaust the memory."""

    entries: Mapping[str, Entry]
    sections: set[str]
    used: set[str] = field(default_factory=set)
    active: list[str] = field(default_factory=list)
    """the keys whose values are being filled in, the outermost first"""
    num_lookups: int = 0

    def resolved_at(self, key: str, depth: int) -> Any:
        """The value at a key with all its interpolations filled in."""
        self.active.append(key)
        value = self.resolved(self.entries[key].value, key, depth)
        self.active.pop()
        return value

    def resolved(self, value: Any, key: str, depth: int, *, is_inside: bool = False) -> Any:
        """The value of `key` with all its interpolations filled in. `is_inside` is for the items of a list."""
        if isinstance(value, list):
            return [self._plain(item, key, depth) for item in value]
        if isinstance(value, dict):
            return {name: self._plain(item, key, depth) for name, item in value.items()}
        if not isinstance(value, str) or "${" not in value:
            return Unresolved(value, "a value that must be given") if value == "???" else value
        return self._text(value, key, depth, is_inside=is_inside)

    def _text(self, value: str, key: str, depth: int, *, is_inside: bool) -> Any:
        """A text that contains an interpolation."""
        if depth > _MAX_DEPTH:
            return Unresolved(value, "an interpolation of more than ten steps")
        if "\\" in value or (is_inside and "${." in value):
            return Unresolved(value, "an interpolation that planner does not read")
        if len(value) > _MAX_TEXT:
            raise recipe_error(
                self.entries[key].where, f"{cut(key)}: interpolations make it longer than {_MAX_TEXT} characters"
            )
        if whole := _INTERPOLATION.fullmatch(value):
            return self._looked_up(whole[1].strip(), value, key, depth)
        return self._filled(value, key, depth)

    def _plain(self, item: Any, key: str, depth: int) -> Any:
        """An item of a list or a mapping in one. A section in it stays unresolved."""
        value = self.resolved(item, key, depth, is_inside=True)
        return Unresolved(str(item), "an interpolation to a section") if isinstance(value, _Section) else value

    def _filled(self, value: str, key: str, depth: int) -> Any:
        """A text that contains interpolations, with all of them filled in."""
        parts = [self._looked_up(name.strip(), value, key, depth) for name in _INTERPOLATION.findall(value)]
        if any(isinstance(part, Unresolved | _Section | list | dict) for part in parts) or not parts:
            return Unresolved(value, "an interpolation that planner cannot resolve")
        filled = iter(parts)
        return self.resolved(_INTERPOLATION.sub(lambda _: str(next(filled)), value), key, depth + 1)

    def _looked_up(self, name: str, value: str, key: str, depth: int) -> Any:
        self.num_lookups += 1
        if self.num_lookups > _MAX_LOOKUPS:
            raise recipe_error(
                self.entries[key].where, f"found more than {_MAX_LOOKUPS} interpolations. Correct {cut(key)}"
            )
        if ":" in name:
            return Unresolved(value, f"an interpolation that only Hydra can resolve ({cut(name.partition(':')[0])})")
        target = _absolute(name, key)
        found = None if target is None else self._at(target, depth)
        return (
            Unresolved(value, f"an interpolation to {cut(name)}, which does not exist") if found is None else found[0]
        )

    def _at(self, name: str, depth: int) -> tuple[Any] | None:
        """What is at a dotted name, None if there is nothing. The way may lead through interpolations and lists."""
        if name in self.entries:
            self.used.add(name)
            return (_CIRCLE if name in self.active else self.resolved_at(name, depth + 1),)
        if name in self.sections and any(key.startswith(f"{name}.") for key in self.active):
            return (_CIRCLE,)
        if name in self.sections:
            return (self._section(name, depth),)
        above, _, last = name.rpartition(".")
        found = self._at(above, depth) if above else None
        if found is None:
            return None
        return _below(found[0], last)

    def _section(self, name: str, depth: int) -> _Section:
        values: dict[str, Any] = {}
        for key in self.entries:
            if key.startswith(f"{name}."):
                self.num_lookups += 1
                self.used.add(key)
                value = self.resolved_at(key, depth + 1)
                below = key.removeprefix(f"{name}.")
                if isinstance(value, _Section):
                    values |= {f"{below}.{last}": each for last, each in value.values.items()}
                else:
                    values[below] = value
        return _Section(values)


def _absolute(name: str, key: str) -> str | None:
    """The dotted name that an interpolation in `key` leads to: `.b` is beside the key, `..b` one section above."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    if not found[1]:
        return found[2]
    above = key.split(".")[: -len(found[1])]
    return ".".join([*above, found[2]]) if len(found[1]) <= key.count(".") + 1 else None


def _below(value: Any, name: str) -> tuple[Any] | None:
    """The value at a name in a section, or at an index of a list."""
    if isinstance(value, Unresolved):
        return (value,)
    if isinstance(value, list) and name.isdecimal() and int(name[:6]) < len(value):
        return (value[int(name)],)
    if not isinstance(value, _Section):
        return None
    if name in value.values:
        return (value.values[name],)
    inside = {key.removeprefix(f"{name}."): its for key, its in value.values.items() if key.startswith(f"{name}.")}
    return (_Section(inside),) if inside else None
