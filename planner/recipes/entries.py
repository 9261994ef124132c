"""A recipe's configuration as dotted keys. `Keys` reads values, collects mistakes, and records which keys were read."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from planner.files.messages import cut, show
from planner.recipes.config_reader import recipe_error
from planner.recipes.rule import NESTED, NO_RULES, Rules
from planner.recipes.scalars import Unresolved, env_names

MOST = 2**40
_FEWEST_FOLDED = 3
_MOST_CHOICES = 6
COMMAND_LINE = "the command line"
_INFINITE = re.compile(r"[-+]?(\.?inf|infinity)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A value and its place."""

    value: Any
    where: str
    """the file, `the command line`, or the system whose default it is"""
    is_default: bool = False
    """whether it is the system's default and not in the recipe"""
    written_as: str = ""
    """the recipe's own key, if `KeyReader` has its value under another name"""


def flat(tree: Mapping[Any, Any], where: str, *, is_default: bool = False, prefix: str = "") -> dict[str, Entry]:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`. Lists stay whole."""
    entries: dict[str, Entry] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            entries |= flat(value, where, is_default=is_default, prefix=f"{name}.")
        else:
            entries[name] = Entry(value=value, where=where, is_default=is_default)
    return entries


@dataclass(kw_only=True)
class KeyReader:
    """Typed access to a recipe's entries.

    A wrong value is added to `mistakes` and a substitute returned, so that one error can list all mistakes.
    """

    source: str
    entries: Mapping[str, Entry]
    mistakes: list[str] = field(default_factory=list)
    is_for_job: bool = True
    """whether to make a job. If not, the recipe needs only what concerns batches"""
    rules: Rules = NO_RULES
    """the rows of the recipe's system"""
    versions: str = "in its system"
    """where a default is from, such as `in TRL 0.19 to 1.16`"""
    method: str = ""
    """what the recipe trains, on which defaults may depend. Empty while it is unknown"""
    fix: str = "{}=VALUE"
    """how the user writes a value behind the recipe. `{}` stands for the key"""
    _read: set[str] = field(default_factory=set)
    _unset: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    """key -> its value, and the shell variables in it"""
    _wrong: set[str] = field(default_factory=set)
    """the keys whose value is not as their rows say"""
    _of_unset: set[int] = field(default_factory=set)
    """the places in `mistakes` of those on `_unset`"""

    def has(self, key: str) -> bool:
        """Whether `key` has a value that is not null."""
        return key in self.entries and self.entries[key].value is not None

    def peek(self, key: str, default: Any = None) -> Any:
        """As `value`, without noting that the key was read: for what no note of the job tells."""
        entry = self.entries.get(key)
        if entry is None or entry.value is None or isinstance(entry.value, Unresolved):
            return default
        return entry.value

    def has_below(self, key: str) -> bool:
        """Whether there are keys in the section `key`."""
        return any(name.startswith(f"{key}.") for name in self.entries)

    def is_set(self, key: str) -> bool:
        """Whether `key` has a value that is neither false, 0 nor empty, or keys below it."""
        return bool(self.peek(key)) or self.has_below(key)

    def wrote(self, name: str) -> bool:
        """Whether the recipe itself has a key of this name, with a value that is not null."""
        row = self.rules.exact(name)
        key = row.into if row and row.into else name
        return self.has(key) and (self.entries[key].written_as or key) == name

    def value(self, key: str, default: Any = None) -> Any:
        """The value of `key`, of any type. The default if it is missing, null or unresolved."""
        self._read.add(key)
        return self.peek(key, default)

    def read(self, key: str) -> Any:
        """The value of `key` as its row says, or the row's default."""
        row = self.rules.of_key(key)
        assert row is not None, key
        default = row.default_of(self.method)
        match row.value:
            case "whole":
                return self.whole(key, default, least=row.least)
            case "number" | "real" | "norm":
                return getattr(self, row.value)(key, default)
            case "truth":
                return self.flag(key, default=bool(default))
            case "text":
                return self.text(key, default)
            case "scalar":
                return default if (found := self.scalar_text(key)) is None else found
        return self.value(key, default)

    def shown(self, key: str) -> str:
        """The name of a key as the recipe has it, or would have it."""
        entry = self.entries.get(key)
        if entry is not None and (entry.written_as or not entry.is_default):
            return entry.written_as or key
        row = self.rules.of_key(key)
        return row.name if row else key

    def whole(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """The whole number at `key`, from `least` to 2**40. It is required if there is no default."""
        value = self._needed(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST:
            return value
        if value is not _NOTHING:
            self.refuse(key, f"Write a whole number from {least} to 2**40")
        return default if default is not None else least

    def number(self, key: str, default: float | None = None) -> float:
        """The number at `key`, at least 0. It is required if there is no default."""
        value = self._needed(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
            return float(value)
        if value is not _NOTHING:
            self.refuse(key, "Write a number of at least 0")
        return default if default is not None else 0.0

    def real(self, key: str, default: float | None = None) -> float:
        """The number at `key`, also below 0. It is required if there is no default."""
        value = self._needed(key, default)
        if isinstance(value, str) and _INFINITE.fullmatch(value):
            return -math.inf if value.startswith("-") else math.inf
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if value is not _NOTHING:
            self.refuse(key, "Write a number")
        return default if default is not None else 0.0

    def norm(self, key: str, default: float) -> float | None:
        """The norm that gradients are clipped to. None if `key` is 0 or `inf`, which mean no clipping."""
        if str(self.value(key)).lower() in {"inf", ".inf"}:
            return None
        return self.number(key, default) or None

    def flag(self, key: str, *, default: bool = False) -> bool:
        """The boolean at `key`, by default `default`. Systems in Python take 0 and 1, too."""
        value = self.value(key, default)
        if value in (0, 1):
            return bool(value)
        self.refuse(key, "Write true or false")
        return default

    def text(self, key: str, default: str | None = None) -> str:
        """The non-empty text at `key`. It is required if there is no default."""
        value = self._needed(key, default)
        if isinstance(value, str) and value:
            return value
        if value is not _NOTHING:
            self.refuse(key, "Write a text")
        return default or "?"

    def scalar_text(self, key: str) -> str | None:
        """The text, number or boolean at `key` as text, None if missing. A list or a section is a mistake."""
        value = self.value(key)
        if isinstance(value, str | int | float):
            return str(value)
        if value is not None:
            self.refuse(key, "Write a single value")
        return None

    def refuse_null(self, system: str, *names: str) -> None:
        """Add a mistake for each of these keys that is null. `system` has no default for them then, and ends."""
        for key in names:
            if key in self.entries and self.entries[key].value is None:
                given = f"Write {self.fix.format(key)} behind the recipe"
                self.wrong(f"{key}: found null, with which {system} does not train. {given}")

    def refuse(self, key: str, fix: str) -> None:
        """Add a mistake: the value of `key`, and as a second sentence how to fix it. None if it is wrong already."""
        if key in self._wrong:
            return
        entry = self.entries.get(key)
        empty = "keys below it" if self.has_below(key) else "nothing"
        found = empty if entry is None or entry.value is None else show(entry.value)
        self.mistakes.append(f"{self.shown(key)}: found {found}. {fix}")

    def refuse_in_job(self, key: str, fix: str) -> None:
        """Add a mistake, as `refuse`, only if a job is to be made: the batch does not depend on this value."""
        if self.is_for_job:
            self.refuse(key, fix)

    def refuse_wrong(self, key: str) -> None:
        """Add a mistake if the value of `key` is not as its row says. The key does not count as read by that."""
        row, entry, was_read = self.rules.of_key(key), self.entries[key], key in self._read
        if row is None or isinstance(entry.value, Unresolved):
            return
        before = len(self.mistakes)
        if entry.value == {} and row.value not in NESTED:
            self.refuse(key, "Write a single value")
        elif row.choices:
            is_new = row.grows and isinstance(entry.value, str) and not near(entry.value, row.choices)
            if entry.value not in row.choices and not is_new:
                self.refuse(key, _one_of(row.choices, entry.value))
        elif row.value == "section":
            if isinstance(entry.value, str | int | float):
                self.refuse(key, "Write keys and values below it")
        elif entry.value is not None and not (row.value == "text" and not entry.value):
            self.read(key)  # an empty text or false stands for none
        if len(self.mistakes) > before:
            self._wrong.add(key)
        if not was_read:
            self._read.discard(key)

    def is_wrong(self, key: str) -> bool:
        """Whether `refuse_wrong` added a mistake on `key`."""
        return key in self._wrong

    def wrong(self, text: str) -> None:
        """Add a mistake with its whole text."""
        self.mistakes.append(text)

    def unresolved(self, key: str, value: Unresolved, where: str) -> None:
        """Add a mistake: the value at `where` is unknown, with how to give it."""
        given = f"Write {self.fix.format(self.shown(key))} behind the recipe"
        self.missing(key, value.text, f"{self.shown(key)}: found {cut(value.text)} in {where}, {value.why}. {given}")

    def missing(self, key: str, value: str, text: str) -> None:
        """Add a mistake `text` on a value that may contain shell variables. `--env` is added as another fix."""
        names = env_names(value)
        if names:
            self._unset[key] = (value, names)
            self._of_unset.add(len(self.mistakes))
        self.wrong(f"{text}, or {_as_options(names)}" if names else text)

    def lacks(self, text: str) -> None:
        """Add a mistake only if a job is to be made: something is missing that the batch does not need."""
        if self.is_for_job:
            self.wrong(text)

    def written(self) -> Iterable[tuple[str, Entry]]:
        """The entries that the recipe itself contains, without the system's defaults."""
        return ((key, its) for key, its in self.entries.items() if not its.is_default)

    def was_read(self, key: str) -> bool:
        """Whether a reader asked for `key`."""
        return key in self._read

    def where(self, key: str) -> str:
        """The place of a key, empty if it is missing."""
        return self.entries[key].where if key in self.entries else ""

    def raise_mistakes(self) -> None:
        """End the reading if there are mistakes.

        Raises:
            RecipeError: there are mistakes. The message has a line for each.
        """
        if self.mistakes:
            raise recipe_error(self.source, *dict.fromkeys(self._folded()))

    def _folded(self) -> list[str]:
        """The mistakes. Three or more missing shell variables share one line, so that the error names all."""
        if len(self._unset) < _FEWEST_FOLDED:
            return self.mistakes
        shown = ", ".join(f"{key}: {cut(value)}" for key, (value, _) in self._unset.items())
        names = dict.fromkeys(name for _, each in self._unset.values() for name in each)
        first = f"found shell variables that are not set ({shown}). Write {_as_options(names)}"
        return [first, *(text for at, text in enumerate(self.mistakes) if at not in self._of_unset)]

    def _needed(self, key: str, default: Any) -> Any:
        """The value, the default, or `_NOTHING` with a mistake added."""
        self._read.add(key)
        entry = self.entries.get(key)
        if entry is not None and isinstance(entry.value, Unresolved):
            if not self.is_for_job and not _is_of_batch(key):
                return _NOTHING
            self.unresolved(key, entry.value, entry.where)
            return _NOTHING
        if entry is None or entry.value is None:
            if default is None:
                text = f"{self.shown(key)}: found nothing. Write {self.fix.format(self.shown(key))} behind the recipe"
                (self.wrong if _is_of_batch(key) else self.lacks)(text)
                return _NOTHING
            return default
        return entry.value


def near(found: Any, choices: Iterable[Any]) -> str:
    """The choice that a value resembles, empty if it resembles none."""
    lower = {each.lower(): each for each in choices if isinstance(each, str)}
    meant = get_close_matches(str(found).lower(), lower, n=1, cutoff=0.8)
    return lower[meant[0]] if meant else ""


def _one_of(choices: Iterable[Any], found: Any) -> str:
    """How to fix a value that is none of these: `Write "no", steps or epoch`. In YAML a plain no is false."""
    shown = [f'"{each}"' if each == "no" else each for each in choices if isinstance(each, str)]
    if meant := near(found, choices):
        return f"Did you mean {meant}?"
    if len(shown) > _MOST_CHOICES:
        return f"Write another one, such as {', '.join(shown[:_MOST_CHOICES])}"
    return f"Write {', '.join(shown[:-1])} or {shown[-1]}"


def _is_of_batch(key: str) -> bool:
    """Whether a check needs the key, too."""
    return key.rpartition(".")[2] in _BATCH_KEYS


def _as_options(names: Iterable[str]) -> str:
    """`--env LR=VALUE --env BETA=VALUE`."""
    return " ".join(f"--env {name}=VALUE" for name in names)


_NOTHING = object()
_BATCH_KEYS = (
    "batch_size",
    "eval_batch_size",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "eval_every",
    "num_generations",
)
