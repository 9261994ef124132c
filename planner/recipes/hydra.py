"""Composes a configuration as Hydra does, from a folder of YAML, defaults lists, overrides and interpolations."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from planner.base.disk import is_file, is_folder
from planner.files.messages import cut, quote
from planner.recipes.config_reader import mapping_of, recipe_error, text_of
from planner.recipes.entries import COMMAND_LINE, Entry, flat
from planner.recipes.scalars import Unresolved, has_shell, hydra_value, scalar, written

_OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z0-9_][A-Za-z0-9_./@-]*)=(.*)", re.DOTALL)
_INTERPOLATION = re.compile(r"\$\{([^${}]*)\}")
_ENVIRONMENT = re.compile(r"\$\{oc\.env:([A-Za-z0-9_]+)(?:,[^${}]*)?\}")
_MAX_DEPTH = 10
# Far above any real recipe. Each lookup makes at most one text of this length, so the two bound the memory.
_MAX_LOOKUPS = 20_000
_MAX_TEXT = 10_000


@dataclass(frozen=True, kw_only=True)
class Override:
    """`key=value`, `+key=value` (a new key), `++key=value` (new or not), `~key=value` (remove the key)."""

    sign: str
    key: str
    value: Any


@dataclass(kw_only=True)
class Composed:
    """A configuration as dotted keys, and the file chosen for each group."""

    entries: dict[str, Entry] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    """arguments of the command line that are no overrides, such as `$MODEL_ARGS`"""


def parse_overrides(arguments: Sequence[str]) -> tuple[list[Override], list[str]]:
    """The overrides among the arguments, and the other arguments."""
    overrides, others = [], []
    for argument in arguments:
        if found := _OVERRIDE.fullmatch(argument):
            overrides.append(Override(sign=found[1] or "", key=found[2], value=_value(found[3])))
        else:
            others.append(argument)
    return overrides, others


def _value(text: str) -> Any:
    value = hydra_value(text)
    if isinstance(value, str) and has_shell(value):
        return Unresolved(value, "a shell variable that the file does not set")
    return value


def compose(
    base: Mapping[str, Entry],
    folder: Path | None,
    arguments: Sequence[str],
    *,
    source: str,
    groups: Sequence[str],
    env: Mapping[str, str],
) -> Composed:
    """The configuration that Hydra would compose.

    Args:
        base: the keys of the files if there is no folder. A key that is not in them needs a `+`, as in Hydra.
        folder: the folder with `config.yaml` and the groups' folders.
        arguments: overrides and choices of the command line.
        source: the recipe, for messages.
        groups: names of Hydra's groups.
        env: values for `${oc.env:NAME}`.

    Raises:
        RecipeError: a file is missing, or an override names a key that the configuration does not have.
    """
    overrides, others = parse_overrides(arguments)
    chosen = {its.key: str(its.value) for its in overrides if its.key in groups and "." not in its.key}
    made = Composed(entries=dict(base), choices=chosen, arguments=others)
    if folder is not None:
        made = _from_folder(folder, chosen)
        made.arguments = others
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
    """The entry with `${oc.env:NAME}` filled in if `env` has NAME."""
    if not isinstance(entry.value, str) or not _ENVIRONMENT.search(entry.value):
        return entry
    filled = _ENVIRONMENT.sub(lambda found: env.get(found[1], found[0]), entry.value)
    return replace(entry, value=scalar(filled))


def _has(known: Mapping[str, Entry], key: str) -> bool:
    return key in known or any(name.startswith(f"{key}.") for name in known)


def _no_such_key(override: Override, known: Mapping[str, Entry]) -> str:
    key = override.key
    near = get_close_matches(key, list(known), cutoff=0.7) or [name for name in known if key in name.split(".")]
    # The DPO repository's datasets is train_datasets or test_datasets in HALOs. Suggest the first.
    near.sort(key=lambda name: name != f"train_{key}")
    hint = f"Did you mean {near[0]}? Otherwise write" if near else "Write"
    return (
        f"{cut(key)}: not a key of that configuration, so Hydra refuses {quote(f'{key}={written(override.value)}')}. "
        f"{hint} +{cut(key)}=... for a new key"
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
    """Adds the file's own values and those of its defaults list to `made`, in the order of the list."""
    if depth > _MAX_DEPTH:
        raise recipe_error(str(file), f"found defaults nested more than {_MAX_DEPTH} deep. Remove the cycle")
    if not is_file(file):
        near = sorted(path.stem for path in file.parent.glob("*.yaml")) if is_folder(file.parent) else []
        hint = f", but {cut(', '.join(near), 200)}" if near else ""
        raise recipe_error(
            str(file), f"found no such file{hint}. Write {cut(group) or 'config'}=NAME for one that exists"
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
        raise recipe_error(str(file), f"defaults.{cut(group)}: found ???. Write {cut(group)}=NAME behind the recipe")
    made.choices[group] = str(name)
    _merge_file(made, folder / group / f"{name}.yaml", folder, group, {}, depth + 1)


def resolve(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The entries with `${a.b}` filled in. A value that needs a resolver or a missing key becomes `Unresolved`.

    Raises:
        RecipeError: interpolations expand beyond 20,000 lookups or 10,000 characters.
    """
    resolver = _Resolver(entries)
    return {
        key: Entry(value=resolver.resolved(its.value, key, 0), where=its.where, is_default=its.is_default)
        for key, its in entries.items()
    }


@dataclass
class _Resolver:
    """Fills in interpolations. It limits their number because a few nested ones can exhaust the memory."""

    entries: Mapping[str, Entry]
    num_lookups: int = 0

    def resolved(self, value: Any, key: str, depth: int) -> Any:
        """The value of `key` with all its interpolations filled in."""
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
                self.entries[key].where, f"{cut(key)}: interpolations make it longer than {_MAX_TEXT} characters"
            )
        if whole := _INTERPOLATION.fullmatch(value):
            return self._looked_up(whole[1].strip(), value, key, depth)
        return self._filled(value, key, depth)

    def _filled(self, value: str, key: str, depth: int) -> Any:
        """A text that contains interpolations, with all of them filled in."""
        parts = [self._looked_up(name.strip(), value, key, depth) for name in _INTERPOLATION.findall(value)]
        if any(isinstance(part, Unresolved) for part in parts) or not parts:
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
        if name.startswith("."):
            name = ".".join([*key.split(".")[:-1], name.lstrip(".")])
        if name not in self.entries:
            return Unresolved(value, f"an interpolation to {cut(name)}, which does not exist")
        return self.resolved(self.entries[name].value, name, depth + 1)
