"""A mapping in a file of rates, of prices, or of a cluster. Each key that planner needs is checked."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.base.node_market import MARKET_LABEL, ON_DEMAND
from planner.files.messages import KeyPath, Mistake, show

_MOST_NUMBER = 1e30


@dataclass(frozen=True, kw_only=True)
class CheckedMapping:
    """A mapping, its place in the file, and the mistakes found so far in the whole file.

    For a key that is missing or wrong, a method adds a mistake and returns an empty value. So one read of the file
    finds all mistakes.
    """

    values: Mapping[Any, Any]
    mistakes: list[Mistake]
    path: KeyPath = ()

    def refuse(self, key: str, fix: str) -> None:
        """Add a mistake: what was found at `key`, and the sentence `fix` that says what to write."""
        found = shown(self.values[key]) if key in self.values else "nothing"
        self.mistakes.append(Mistake(path=(*self.path, key), text=f"found {found}. {fix}"))

    def section(self, key: str, fix: str) -> "CheckedMapping":
        """The section at the required `key`. `fix` says what to write if it is missing."""
        if isinstance(self.values.get(key), dict):
            return self.optional(key)
        self.refuse(key, fix)
        # Mistakes below a missing section are not reported, so they go to another list.
        return CheckedMapping(values={}, mistakes=[], path=(*self.path, key))

    def optional(self, key: str) -> "CheckedMapping":
        """The section at `key`, empty if there is none."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            self.refuse(key, "Write a section of keys and values")
        return CheckedMapping(
            values=value if isinstance(value, dict) else {}, mistakes=self.mistakes, path=(*self.path, key)
        )

    def sections(self, key: str, fix: str) -> list["CheckedMapping"]:
        """The list of one or more sections at `key`."""
        values = self.values.get(key)
        if not isinstance(values, list) or not values or not all(isinstance(value, dict) for value in values):
            self.refuse(key, fix)
            return []
        path = (*self.path, key)
        return [
            CheckedMapping(values=value, mistakes=self.mistakes, path=(*path, index))
            for index, value in enumerate(values)
        ]

    def named(self) -> Iterator[tuple[str, "CheckedMapping"]]:
        """The keys of this section, each with its section."""
        for name in self.values:
            if isinstance(name, str):
                yield name, self.section(name, "Write a section of keys and values")
            else:
                text = f"found the key {shown(name)}. Write a name that is text"
                self.mistakes.append(Mistake(path=self.path, text=text))

    def text(self, key: str, fix: str) -> str:
        """The text at the required `key`."""
        value = self.values.get(key)
        if isinstance(value, str) and value:
            return value
        self.refuse(key, fix)
        return ""

    def whole(self, key: str, default: int | None = None, *, num_bits: int = 63) -> int:
        """The whole number from 0 to `2**num_bits - 1` at `key`. Without a default, the key is required."""
        value = self.values.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**num_bits:
            return value
        self.refuse(key, f"Write a whole number from 0 to 2**{num_bits} - 1")
        return 0

    def number(self, key: str, fix: str, default: float | None = None, *, least: float = 0.0) -> float:
        """The number from `least` to 10^30 at `key`. Without a default, the key is required. Below 10^-30 it is 0.

        So products and quotients of a few numbers are finite. YAML 1.1 takes `1e-3`, without a dot, for text. It is a
        number here.
        """
        value = self.values.get(key, default)
        try:
            found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
        except (ValueError, OverflowError):
            found = math.nan
        if least <= found <= _MOST_NUMBER:
            return found if found * _MOST_NUMBER >= 1 else 0.0
        self.refuse(key, fix)
        return least


def market_of(node_type: CheckedMapping) -> str:
    """How the nodes of a node type are rented, by the label in its `labels`. Empty if there is none."""
    labels = node_type.optional("labels")
    if MARKET_LABEL not in labels.values:
        return ""
    return labels.text(MARKET_LABEL, f"Write a text, such as {ON_DEMAND} or spot")


def shown(value: Any) -> str:
    """A value for a message. Dates and bytes are shown as text."""
    known = value is None or isinstance(value, str | dict | list | bool | int | float)
    return show(value if known else str(value))
