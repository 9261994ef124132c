"""Reads and writes keys by their rows: what needs no code of a system's own.

`rename` gives keys the names of the layer below, `refuse_unknown` finds those without a row, `shipped` makes entries of
defaults, `carried` takes keys of a recipe into the draft of a job, and `written` writes values of a job as options.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from planner.files.messages import cut
from planner.recipes.drafting import carry
from planner.recipes.entries import Entry, KeyReader
from planner.recipes.recipe import Draft
from planner.recipes.rendering import Rendering, truth
from planner.recipes.rule import KeyRule, Rules
from planner.recipes.scalars import number

# Fewer keys of a system may be in another one's recipe, too.
_FEWEST_MARKS = 2


def has_marks(rules: Rules, names: Mapping[str, Any]) -> bool:
    """Whether these are keys of the system with these rows: two or more that hardly another system has."""
    return sum(row.mark and row.name in names for row in rules) >= _FEWEST_MARKS


def rename(keys: KeyReader) -> None:
    """Put the value of each key whose row has another name below under that name. Messages keep the recipe's own."""
    entries: dict[str, Entry] = {}
    for name, entry in keys.entries.items():
        row = keys.rules.exact(name)
        target = row.into if row and row.into else name
        if entry.written_as or target == name:
            entries.setdefault(target, entry)
            continue
        own = target if target in keys.entries and (row := keys.rules.exact(target)) and not row.into else ""
        if other := own or (entries[target].written_as if target in entries else ""):
            keys.wrong(f"{name} and {other}: both set the same value. Remove one")
        entries[target] = replace(entry, written_as=name)
    keys.entries = entries


def refuse_unknown(keys: KeyReader, title: str) -> None:
    """Note each key without a row as a mistake, with the row that it resembles. `title` is the system's name."""
    unknown = dict.fromkeys(name.partition(".")[0] for name in keys.entries)
    for name in unknown:
        if keys.rules.row(name) is None:
            near = get_close_matches(name, keys.rules.names, n=1, cutoff=0.82)
            hint = f"Did you mean {near[0]}?" if near else "Remove it, or correct its name"
            keys.wrong(f"{cut(name)}: {title} does not know this key and refuses the recipe. {hint}")


def carried(draft: Draft, keys: KeyReader, *names: str) -> None:
    """Set the job's value of each of these keys, or the system's default, with a note. Mistakes are added to `keys`."""
    for name in names:
        row = keys.rules.of_key(name)
        assert row is not None, name
        carry(draft, keys, name, row.ours, keys.read(name), whose=keys.versions)


def carried_if_set(draft: Draft, keys: KeyReader, *names: str) -> None:
    """Set the job's value of each of these keys that is not null, with a note."""
    carried(draft, keys, *(name for name in names if keys.has(name)))


def shipped(rules: Iterable[KeyRule], where: str, method: str = "") -> dict[str, Entry]:
    """The default of each row as an entry, for a recipe without its system's own files. `where` names those."""
    return {row.name: Entry(value=row.default_of(method), where=where, is_default=True) for row in rules}


def written(rendering: Rendering, rules: Rules, *names: str, sign: str = "--") -> None:
    """Write the job's value of each of these keys, if the job has one.

    `sign` is `--` for `--key value`. Any other one begins an override of Hydra, such as `++` in `++key=value`.
    """
    for name in names:
        row = rules[name]
        value = rendering.value(row.ours)
        if value is None and row.value != "norm":
            continue
        if sign == "--":
            rendering.write(row.ours, f"--{name} {_text(row, value, quote=shlex.quote)}")
        else:
            rendering.write(row.ours, shlex.quote(f"{sign}{name}={_text(row, value, none='inf')}"))


def _text(row: KeyRule, value: Any, *, none: str = "0", quote: Callable[[str], str] = str) -> str:
    """A value as its system's command line takes it. `none` is the norm that clips nothing."""
    match row.value:
        case "norm":
            return number(value) if value else none
        case "number" | "whole":
            return number(value)
        case "truth":
            return truth(value=bool(value))
    return quote(str(value))
