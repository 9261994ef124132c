"""One row as it lies in a file, whatever the file's form."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from planner.data.json_types import json_type
from planner.errors import DataError


class RawRow(NamedTuple):
    """What a reader finds in its file for one row."""

    where: str
    """the file and the line, or the number of the row from 0; errors begin with it"""
    value: Any
    """a mapping from names to values of JSON; anything else is a flaw of the row"""
    read: int
    """how much of the file had been read before it: bytes, at most the file's size"""
    flaw: str = ""
    """why there is no value; empty if there is one"""


Reader = Callable[[Path], Iterator[RawRow]]
"""Reads the rows of one file in their order. It raises a DataError where no more rows can be read."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row, and how far its data set is read."""

    where: str
    """the file and the line, or the number of the row from 0"""
    fields: dict[str, Any]
    """what it holds; what is null counts as missing"""
    flaw: str
    """why it is no row at all; empty if it is one"""
    read: tuple[int, int]
    """how much had been read before it, and how much there is"""


def row_of(found: RawRow, read: tuple[int, int]) -> Row:
    """The row of what a reader found."""
    flaw = found.flaw
    if not flaw and not isinstance(found.value, dict):
        flaw = f"{json_type(found.value)} instead of an object"
    fields = {} if flaw else {key: item for key, item in found.value.items() if item is not None}
    return Row(where=found.where, fields=fields, flaw=flaw, read=read)


def unreadable(what: object, error: BaseException) -> DataError:
    """The refusal of a file whose reader raised an error."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return DataError(f"data.path: cannot read {what}: {reason}")
