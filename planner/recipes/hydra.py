"""Hydra's way of putting a configuration together: a folder of YAML, a list of defaults, overrides, interpolations."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from planner.base.disk import is_file, is_folder
from planner.files.messages import cut, quote
from planner.recipes.entries import COMMAND_LINE, Entry, flat
from planner.recipes.scalars import Unresolved, hydra_value, scalar, shell_names, written
from planner.recipes.texts import mapping_of, recipe_error, text_of

_OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z0-9_][A-Za-z0-9_./@-]*)=(.*)", re.DOTALL)
_INTERPOLATION = re.compile(r"\$\{([^${}]*)\}")
_ENVIRONMENT = re.compile(r"\$\{oc\.env:([A-Za-z0-9_]+)(?:,[^${}]*)?\}")
_MAX_DEPTH = 10
# Far above any real recipe. Each lookup makes at most one text of this length, so both bound the memory.
_MAX_LOOKUPS = 20_000
_MAX_TEXT = 10_000


@dataclass(frozen=True, kw_only=True)
class Override:
    """`key=value`, `+key=value` (new), `++key=value` (new or not), `~key` (away)."""

    sign: str
    key: str
    value: Any


@dataclass(kw_only=True)
class Composed:
    """A configuration as dotted keys, and which file was chosen for each group."""

    entries: dict[str, Entry] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    """words of the command line that are no overrides, such as `$MODEL_ARGS`"""


def parse_overrides(words: Sequence[str]) -> tuple[list[Override], list[str]]:
    """The overrides among the words, and the words that are none."""
    overrides, others = [], []
    for word in words:
        if found := _OVERRIDE.fullmatch(word):
            overrides.append(Override(sign=found[1] or "", key=found[2], value=_value(found[3])))
        else:
            others.append(word)
    return overrides, others


def _value(text: str) -> Any:
    value = hydra_value(text)
    if isinstance(value, str) and shell_names(value):
        return Unresolved(value, "a shell variable that the file does not set")
    return value


def compose(
    base: Mapping[str, Entry],
    folder: Path | None,
    words: Sequence[str],
    *,
    source: str,
    groups: Sequence[str],
    env: Mapping[str, str],
) -> Composed:
    """The configuration that Hydra would make.

    `base` stands for the files where there is no folder; then a key that is not in it needs a `+`, as in Hydra.
    `env` fills in `${oc.env:NAME}`.

    Raises:
        RecipeError: a file is missing, or an override names a key that the configuration does not have.
    """
    overrides, others = parse_overrides(words)
    chosen = {its.key: str(its.value) for its in overrides if its.key in groups and "." not in its.key}
    made = Composed(entries=dict(base), choices=chosen, words=others)
    if folder is not None:
        made = _from_folder(folder, chosen)
        made.words = others
    known = {**base, **made.entries}
    unknown = [its for its in overrides if not its.sign and its.key not in chosen and not _has(known, its.key)]
    if unknown:
        raise recipe_error(source, *(_no_such_key(its, known) for its in unknown))
    for its in overrides:
        if its.key not in chosen:
            made.entries = {key: old for key, old in made.entries.items() if not key.startswith(f"{its.key}.")}
            if its.sign == "~":
                made.entries.pop(its.key, None)
            else:
                made.entries[its.key] = Entry(value=its.value, where=COMMAND_LINE)
    made.entries = resolve({key: _in_environment(its, env) for key, its in made.entries.items()})
    return made


def _in_environment(entry: Entry, env: Mapping[str, str]) -> Entry:
    """With `${oc.env:NAME}` filled in where somebody said what NAME is."""
    if not isinstance(entry.value, str) or not _ENVIRONMENT.search(entry.value):
        return entry
    filled = _ENVIRONMENT.sub(lambda found: env.get(found[1], found[0]), entry.value)
    return replace(entry, value=scalar(filled))


def _has(known: Mapping[str, Entry], key: str) -> bool:
    return key in known or any(name.startswith(f"{key}.") for name in known)


def _no_such_key(override: Override, known: Mapping[str, Entry]) -> str:
    key = override.key
    near = get_close_matches(key, list(known), cutoff=0.7) or [name for name in known if key in name.split(".")]
    # HALOs has two kinds of what the DPO repository calls datasets: what a recipe trains on comes first.
    near.sort(key=lambda name: name != f"train_{key}")
    hint = f"did you mean {near[0]}? Or " if near else ""
    return (
        f"{cut(key)}: not a key of that configuration, and Hydra refuses {quote(f'{key}={written(override.value)}')}; "
        f"{hint}write +{cut(key)}=... for a new key"
    )


def _from_folder(folder: Path, chosen: Mapping[str, str]) -> Composed:
    made = Composed()
    _merge_file(made, folder / "config.yaml", folder, "", dict(chosen))
    for group, name in chosen.items():
        if group not in made.choices and is_folder(folder / group):
            _merge_file(made, folder / group / f"{name}.yaml", folder, group, {})
            made.choices[group] = name
    return made


def _merge_file(made: Composed, file: Path, folder: Path, group: str, chosen: dict[str, str], depth: int = 0) -> None:
    """The file's own values, and those of its defaults list before or after them, as the list says."""
    if depth > _MAX_DEPTH:
        raise recipe_error(str(file), f"found defaults that lead to defaults {_MAX_DEPTH} times; end the circle")
    if not is_file(file):
        near = sorted(path.stem for path in file.parent.glob("*.yaml")) if is_folder(file.parent) else []
        hint = f"; the files there are {cut(', '.join(near), 200)}" if near else ""
        raise recipe_error(
            str(file), f"found no such file{hint}; write {cut(group) or 'config'}=NAME for one that is there"
        )
    tree = mapping_of(text_of(file), str(file))
    defaults = tree.pop("defaults", None)
    items = defaults if isinstance(defaults, list) else []
    # Without `_self_` Hydra puts a file's own values last.
    if "_self_" not in items:
        items = [*items, "_self_"]
    for item in items:
        if item == "_self_":
            made.entries |= flat(tree, str(file), prefix=f"{group}." if group else "")
        elif isinstance(item, str):
            _merge_file(made, file.parent / f"{item}.yaml", folder, group, {}, depth + 1)
        elif isinstance(item, dict) and len(item) == 1:
            ((its_group, name),) = item.items()
            _merge_choice(made, str(its_group), chosen.get(str(its_group), name), file, folder, depth)


def _merge_choice(made: Composed, group: str, name: Any, file: Path, folder: Path, depth: int) -> None:
    group = group.removeprefix("optional ").removeprefix("override ")
    if group.startswith("hydra/") or name is None:
        return
    if name == "???":
        raise recipe_error(str(file), f"defaults.{cut(group)}: found ???; write {cut(group)}=NAME behind the recipe")
    made.choices[group] = str(name)
    _merge_file(made, folder / group / f"{name}.yaml", folder, group, {}, depth + 1)


def resolve(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """`${a.b}` filled in; what needs the machine, a resolver or a key that is not there becomes `Unresolved`.

    Raises:
        RecipeError: interpolations multiply beyond what any recipe holds.
    """
    resolver = _Resolver(entries)
    return {
        key: Entry(value=resolver.resolved(its.value, key, 0), where=its.where, is_default=its.is_default)
        for key, its in entries.items()
    }


@dataclass
class _Resolver:
    """Fills in interpolations and limits their number: a few nested ones can expand beyond all memory."""

    entries: Mapping[str, Entry]
    num_lookups: int = 0

    def resolved(self, value: Any, key: str, depth: int) -> Any:
        """The value that stands at `key`, all its interpolations filled in."""
        if isinstance(value, list):
            return [self.resolved(item, key, depth) for item in value]
        if value == "???":
            return Unresolved(value, "a value that must be given")
        if not isinstance(value, str) or "${" not in value:
            return value
        if depth > _MAX_DEPTH:
            return Unresolved(value, "an interpolation that leads back to itself")
        if len(value) > _MAX_TEXT:
            raise recipe_error(
                self.entries[key].where, f"{cut(key)}: interpolations make more than {_MAX_TEXT} characters of it"
            )
        if whole := _INTERPOLATION.fullmatch(value):
            return self._looked_up(whole[1].strip(), value, key, depth)
        return self._filled(value, key, depth)

    def _filled(self, value: str, key: str, depth: int) -> Any:
        """A text with interpolations among other words."""
        parts = [self._looked_up(name.strip(), value, key, depth) for name in _INTERPOLATION.findall(value)]
        if any(isinstance(part, Unresolved) for part in parts) or not parts:
            return Unresolved(value, "an interpolation that cannot be resolved here")
        filled = iter(parts)
        return self.resolved(_INTERPOLATION.sub(lambda _: str(next(filled)), value), key, depth + 1)

    def _looked_up(self, name: str, value: str, key: str, depth: int) -> Any:
        self.num_lookups += 1
        if self.num_lookups > _MAX_LOOKUPS:
            raise recipe_error(
                self.entries[key].where, f"found more than {_MAX_LOOKUPS} interpolations; mend {cut(key)}"
            )
        if ":" in name:
            return Unresolved(value, f"an interpolation that only Hydra can resolve ({cut(name.partition(':')[0])})")
        if name.startswith("."):
            name = ".".join([*key.split(".")[:-1], name.lstrip(".")])
        if name not in self.entries:
            return Unresolved(value, f"an interpolation to {cut(name)}, which is not there")
        return self.resolved(self.entries[name].value, name, depth + 1)
