"""A mapping in a file of a foreign format: the keys that we need, each checked; the others are not our business."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.files.messages import KeyPath, Mistake, show

# Memory is counted in bytes; past it nothing is counted at all.
_MAX_WHOLE = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class FileSection:
    """A mapping, where it stands, and the mistakes found so far in the whole file.

    Whoever asks for a key that is missing or wrong gets a stand-in, and the mistake is noted: one reading tells all.
    """

    values: Mapping[Any, Any]
    mistakes: list[Mistake]
    path: KeyPath = ()

    def refuse(self, key: str, fix: str) -> None:
        """Note what stands at `key`, and what should."""
        found = shown(self.values[key]) if key in self.values else "nothing"
        self.mistakes.append(Mistake(path=(*self.path, key), text=f"found {found}; {fix}"))

    def section(self, key: str, fix: str) -> "FileSection":
        """The section at `key`, which must be there; `fix` says what to write."""
        if isinstance(self.values.get(key), dict):
            return self.optional(key)
        self.refuse(key, fix)
        # Nothing is said of what would stand below a section that is not there.
        return FileSection(values={}, mistakes=[], path=(*self.path, key))

    def optional(self, key: str) -> "FileSection":
        """The section at `key`; empty where there is none."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            self.refuse(key, "write a section of keys and values")
        return FileSection(
            values=value if isinstance(value, dict) else {}, mistakes=self.mistakes, path=(*self.path, key)
        )

    def sections(self, key: str, fix: str) -> list["FileSection"]:
        """The list of sections at `key`, of which there must be one at least."""
        values = self.values.get(key)
        if not isinstance(values, list) or not values or not all(isinstance(value, dict) for value in values):
            self.refuse(key, fix)
            return []
        path = (*self.path, key)
        return [
            FileSection(values=value, mistakes=self.mistakes, path=(*path, index)) for index, value in enumerate(values)
        ]

    def named(self) -> Iterator[tuple[str, "FileSection"]]:
        """The keys of this section, each with the section that stands there."""
        for name in self.values:
            if isinstance(name, str):
                yield name, self.section(name, "write a section of keys and values")
            else:
                text = f"found the key {shown(name)}; write a name that is text"
                self.mistakes.append(Mistake(path=self.path, text=text))

    def text(self, key: str, fix: str) -> str:
        """The text at `key`, which must be there."""
        value = self.values.get(key)
        if isinstance(value, str) and value:
            return value
        self.refuse(key, fix)
        return ""

    def whole(self, key: str, default: int | None = None) -> int:
        """The whole number of at least 0 at `key`; without a default it must be there."""
        value = self.values.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_WHOLE:
            return value
        self.refuse(key, "write a whole number from 0 to 2**63 - 1")
        return 0


def shown(value: Any) -> str:
    """A value as `show` has it; dates and bytes, which our own files do not know, as text."""
    known = value is None or isinstance(value, str | dict | list | bool | int | float)
    return show(value if known else str(value))
