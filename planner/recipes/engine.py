"""Reads and writes keys by their rows: what needs no code of a system's own.

`rename` gives keys the names of the layer below, `refuse_unknown` and its like find mistakes, `shipped` makes entries
of defaults, `carried` takes keys of a recipe into the draft of a job, and `written` writes values of a job as options.
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
from planner.recipes.rule import NESTED, KeyRule, Rules
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


def refuse_types(keys: KeyReader, title: str) -> None:
    """Note each value that is not of its row's type as a mistake, as a system does that checks them (pydantic)."""
    for name, entry in keys.entries.items():
        found = keys.rules.of_key(name)
        if found and entry.value == {} and found.value not in (*NESTED, *_WANTED):
            keys.refuse(name, f"{title} refuses it: write a single value")
    for row in keys.rules:
        name, wanted = row.into or row.name, _WANTED.get(row.value)
        value = keys.peek(name)
        if wanted is None or value is None:
            continue
        types, text = wanted
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types) or value == "":
            keys.refuse(name, f"{title} refuses it: write {text}")
    _refuse_below(keys, title)


_NUMBER = ((int, float), "a number")
_WANTED: dict[str, tuple[tuple[type, ...], str]] = {
    "whole": _NUMBER,
    "number": _NUMBER,
    "norm": _NUMBER,
    "text": ((str,), "a text"),
    "list": ((list,), "a list"),
    "section": ((dict,), "keys and values"),
}


def refuse_values(keys: KeyReader, title: str, *, but: str = "") -> None:
    """Note each value that is not as its row says, and keys below one that takes a single value, as mistakes.

    It is for systems that do not take every type, such as HfArgumentParser's. Texts such as `yes` are truths already
    (`read_truths`). `title` is the system's name, and `but` a value that every key may have, such as `auto`.
    """
    for name, entry in tuple(keys.entries.items()):
        if not entry.is_default and not (but and entry.value == but):
            keys.refuse_wrong(name)
    _refuse_below(keys, title)


def _refuse_below(keys: KeyReader, title: str) -> None:
    """Note keys below one that takes none as a mistake."""
    for name in dict.fromkeys(section for each in keys.entries for section in _sections_of(each)):
        row = keys.rules.of_key(name)
        if row and row.value not in NESTED:
            fix = "Write a list" if row.value == "list" else "Write a single value"
            keys.wrong(f"{name}: found keys below it, which {title} does not take. {fix}")


def _sections_of(name: str) -> list[str]:
    """The sections of a dotted key: `a`, `a.b` of `a.b.c`."""
    return [name[:at] for at, letter in enumerate(name) if letter == "."]


def refuse_beside(keys: KeyReader, title: str, pairs: Mapping[str, tuple[str, ...]]) -> None:
    """Note keys that a system refuses beside another one as mistakes. A key counts if it has a value (`is_set`)."""
    for name, others in pairs.items():
        for other in others if keys.is_set(below(keys.rules, name)) else ():
            if keys.is_set(below(keys.rules, other)):
                keys.wrong(f"{other}: {title} refuses it beside {name}. Remove one of them")


def refuse_without(keys: KeyReader, title: str, pairs: Mapping[str, str]) -> None:
    """Note keys that a system refuses without another one as mistakes."""
    for name, other in pairs.items():
        if keys.is_set(below(keys.rules, name)) and not keys.is_set(below(keys.rules, other)):
            keys.wrong(f"{name}: {title} refuses it without {other}. Write that, or remove {name}")


Case = tuple[Any, str, str]
"""whether a system refuses a recipe (any value that is true), the key, and why: `beside packing: remove one`"""


def refuse_cases(keys: KeyReader, title: str, cases: Iterable[Case]) -> None:
    """Note each case that applies as a mistake."""
    for is_wrong, name, why in cases:
        if is_wrong:
            keys.refuse(below(keys.rules, name), f"{title} refuses it {why}")


def below(rules: Rules, name: str) -> str:
    """The name under which the layer below has a key."""
    row = rules.exact(name)
    return row.into if row and row.into else name


def altering(keys: KeyReader, rules: Rules | None = None) -> list[str]:
    """The keys that make the recipe's loss another one than planner's objectives, by the recipe's own names.

    `rules` are the rows to ask, by default all of the recipe's system. Their keys count as read.
    """
    found = ((row.into or row.name, row.alters) for row in rules or keys.rules if row.alters is not None)
    return [keys.shown(name) for name, plain in found if (its := keys.value(name)) is not None and its not in plain]


def note_settings(draft: Draft, keys: KeyReader) -> None:
    """Puts the settings of the recipe's loss into the draft, for the user's own training loop."""
    names = [row.into or row.name for row in keys.rules if row.of_loss or row.alters is not None]
    draft.set("objective", {keys.shown(name): keys.value(name) for name in names if keys.has(name)})


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


def default(value: Any, where: str, name: str = "") -> Entry:
    """A default of the system at `where`, computed of the recipe's key `name`, if it is."""
    return Entry(value=value, where=where, is_default=True, written_as=name)


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
