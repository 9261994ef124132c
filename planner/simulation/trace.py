"""A trace of spot capacity: how many nodes are there, over time, and which ones if that is known."""

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Self

from planner.base.text import counted
from planner.errors import UserError

CAPACITY_COLUMNS = ("time_s", "available_nodes")
EVENT_COLUMNS = ("time_s", "event", "node")
MOST_CHANGES = 20_000
"""times that a node comes or goes. The bounds look at each two of them"""
_MOST_NODES = 100_000
# Python refuses to read numbers of more than 4,300 digits.
_MOST_DIGITS = 100


@dataclass(frozen=True, kw_only=True)
class NodesAt:
    """How many nodes are there from a time on."""

    time_s: float
    nodes: int


@dataclass(frozen=True, kw_only=True)
class NodeEvent:
    """A node comes, goes or gets notice."""

    time_s: float
    event: Literal["add", "remove", "notice"]
    node: str


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Nodes over time. It begins at 0 s, with its first row."""

    rows: tuple[NodesAt, ...]
    """a step function, by rising time. The last row only marks the end"""
    events: tuple[NodeEvent, ...] = ()
    """which nodes, by rising time. Empty if only their number is known"""

    @property
    def end_s(self) -> float:
        """When it ends."""
        return self.rows[-1].time_s

    @property
    def changes(self) -> int:
        """How often a node comes or goes before the end."""
        if self.events:
            return sum(event.time_s < self.end_s for event in self.events if event.event != "notice")
        return self.rows[0].nodes + sum(abs(later.nodes - row.nodes) for row, later in pairwise(self.rows))

    def until(self, end_s: float) -> Self:
        """The part before a time."""
        if end_s >= self.end_s:
            return self
        kept = [row for row in self.rows if row.time_s < end_s]
        return replace(self, rows=(*kept, NodesAt(time_s=end_s, nodes=kept[-1].nodes)))


def parse_trace(text: str, name: str, events: str = "", events_name: str = "") -> Trace:
    """The trace in the text of a CSV file with `time_s,available_nodes`, and of one with `time_s,event,node`.

    Times are counted from the first row on. Earlier events happen at 0 s.

    Args:
        text: of the capacity file.
        name: of that file, for errors.
        events: of the events file. Empty if there is none.
        events_name: of that file, for errors.

    Raises:
        UserError: a row is wrong. The message names its line.
    """
    rows = list(_capacity(text, name))
    if len(rows) < 2:
        raise UserError(
            f"{name}: found {counted(len(rows), 'row')}. A trace needs at least two: the last one marks its end"
        )
    began_s = rows[0].time_s
    shifted = tuple(NodesAt(time_s=row.time_s - began_s, nodes=row.nodes) for row in rows)
    if shifted[-1].time_s <= 0:
        raise UserError(f"{name}: all rows have one time. The last row must mark the trace's end")
    if not any(row.nodes for row in shifted[:-1]):
        raise UserError(f"{name}: found no node at any time. Write a trace with some")
    found = _node_events(events, events_name) if events else ()
    # A node that came before the first row is there at 0 s.
    moved = tuple(replace(event, time_s=max(event.time_s - began_s, 0.0)) for event in found)
    return Trace(rows=shifted, events=moved)


def _capacity(text: str, name: str) -> Iterator[NodesAt]:
    last_s = -math.inf
    for line, row in _table(text, name, CAPACITY_COLUMNS):
        time_s = _time(row["time_s"], last_s, f"{name}: line {line}")
        nodes = row["available_nodes"].strip()
        if not (nodes.isascii() and nodes.isdigit() and len(nodes) <= _MOST_DIGITS and int(nodes) <= _MOST_NODES):
            raise UserError(
                f"{name}: line {line}: available_nodes is {nodes[:9]!r}. Write a whole number from 0 to {_MOST_NODES:,}"
            )
        last_s = time_s
        yield NodesAt(time_s=time_s, nodes=int(nodes))


def _node_events(text: str, name: str) -> Iterator[NodeEvent]:
    last_s = -math.inf
    for line, row in _table(text, name, EVENT_COLUMNS):
        last_s = _time(row["time_s"], last_s, f"{name}: line {line}")
        match row["event"].strip():
            case "add" | "remove" | "notice" as event:
                yield NodeEvent(time_s=last_s, event=event, node=row["node"].strip())
            case other:
                raise UserError(f"{name}: line {line}: event is {other!r}. Write add, remove or notice")


def _table(text: str, name: str, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """The line and the values of each row. All columns are there."""
    rows = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    try:
        names = [each.strip() for each in rows.fieldnames or ()]
        if missing := [column for column in columns if column not in names]:
            raise UserError(f"{name}: line 1: found no column {missing[0]}. The first line must be {','.join(columns)}")
        rows.fieldnames = names
        for row in rows:
            values = {column: row[column] for column in columns}
            if empty := [column for column in columns if values[column] is None or not values[column].strip()]:
                raise UserError(
                    f"{name}: line {rows.line_num}: {empty[0]} is missing. Write all of {','.join(columns)}"
                )
            yield rows.line_num, values
    except csv.Error as error:
        raise UserError(f"{name}: line {rows.line_num}: found what is no table ({error})") from None


def _time(text: str, last_s: float, where: str) -> float:
    try:
        time_s = float(text)
    except ValueError:
        time_s = math.nan
    if not math.isfinite(time_s):
        raise UserError(f"{where}: time_s is {text.strip()!r}. Write seconds, such as 90 or 90.5")
    if time_s < last_s:
        raise UserError(f"{where}: time_s is {time_s:g}, after {last_s:g}. Sort the rows by time")
    return time_s
