"""One row of a file, independent of the file's form."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from planner.base.json_text import json_type
from planner.errors import DataError


class RawRow(NamedTuple):
    """What a reader finds in its file for one row."""

    where: str
    """the file with the line, or with the number of the row from 0. Errors begin with it."""
    value: Any
    """a mapping from names to JSON values. Anything else makes the row unusable."""
    read: int
    """bytes of the file that were read before this row, at most the file's size"""
    flaw: str = ""
    """why there is no value, empty if there is one"""


Reader = Callable[[Path], Iterator[RawRow]]
"""Yields the rows of one file in order. It raises a DataError where no more rows can be read."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row, and how much of its data set was read before it."""

    where: str
    """the file with the line, or with the number of the row from 0"""
    fields: dict[str, Any]
    """name -> value, without values that are null"""
    flaw: str
    """why the row cannot be used, empty if it can"""
    read: tuple[int, int]
    """(amount read before this row, total amount), in bytes or rows"""
    nulls: frozenset[str] = frozenset()
    """names whose values are null"""


def row_of(found: RawRow, read: tuple[int, int]) -> Row:
    """The `Row` for what a reader found."""
    flaw = found.flaw
    if not flaw and not isinstance(found.value, dict):
        flaw = f"{json_type(found.value)} instead of an object"
    value = {} if flaw else found.value
    fields = {key: item for key, item in value.items() if item is not None}
    nulls = frozenset(value.keys() - fields.keys()) if len(fields) < len(value) else frozenset()
    return Row(where=found.where, fields=fields, flaw=flaw, read=read, nulls=nulls)


def unreadable(what: object, error: BaseException) -> DataError:
    """The error for a file whose reader raised `error`."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return DataError.of("data.path", f"cannot read {what}: {reason}")
