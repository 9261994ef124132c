"""Rows of a data set by their number, without reading those before: JSON lines, and tables of the datasets library.

A parquet file becomes a table in the library's cache. What can only be read from its beginning is refused.
"""

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from planner.data.arrow_types import plain_values, require_plain
from planner.data.bad_rows import NO_SKIP, BadRows
from planner.data.base import Progress
from planner.data.examples import BadRow
from planner.data.hub_sets import cached_files
from planner.data.one_format import OneFormat
from planner.data.paths import MAX_LINE_BYTES, Stamps, content_fingerprint, opened, resolve, stamps_of_files
from planner.data.row import RawRow, Row, row_of, unreadable
from planner.data.row_files import line_rows, parsed, reader_of
from planner.data.row_index import RowIndex
from planner.data.rows import TableRows, no_split, of_split, open_rows, renamed
from planner.data.sample_cache import INDEXES, cached
from planner.data.shared_array import SharedArray
from planner.data.tables import is_saved_folder, load_folder, load_parquet, parquet_rows, require_columns
from planner.errors import DataError
from planner.job import RowSource

_ROWS_PER_READ = 1000


class RowAccess(Protocol):
    """The rows of one data set by their number, from 0. Picklable, for loader processes."""

    @property
    def stamps(self) -> Stamps:
        """The files that hold the rows."""
        ...

    @property
    def index(self) -> RowIndex:
        """Where the rows are."""
        ...

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """The rows with these numbers, in this order.

        Raises:
            DataError: the files cannot be read any more, or have changed.
        """
        ...

    def where(self, number: int) -> str:
        """The place of a row, for errors."""
        ...


def open_access(source: RowSource, one: OneFormat, progress: Progress) -> RowAccess:
    """Index the rows that a job names. JSON lines are parsed once for that, tables are not read.

    Raises:
        DataError: there is no data, a row has no or another format, or rows can only be read one after another.
    """
    rows = open_rows(source)
    if isinstance(rows, TableRows):
        return _table(rows, progress, of_rows=False)
    if is_saved_folder(folder := Path(source.path)):
        return _table(TableRows(load_folder(folder), str(folder), source), progress, of_rows=True)
    root, files = resolve(source.path)
    readers = {reader_of(file) for file in files}
    if readers == {line_rows}:
        return _lines(root, files, source, one, progress)
    if readers == {parquet_rows}:
        return _table(TableRows(load_parquet(files), source.path, source), progress, of_rows=True)
    raise DataError.of(
        "data.tokenize",
        f"on_demand cannot read single rows of {source.path}. Write JSON lines, parquet files or a folder of "
        "save_to_disk, or tokenize: ahead",
    )


# -- JSON lines


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Rows of JSON lines. Each is read from its file when it is asked for."""

    stamps: Stamps
    source: RowSource
    index: RowIndex

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """The rows with these numbers."""
        return [renamed(row_of(self._line(number), (0, 1)), self.source.columns) for number in numbers]

    def where(self, number: int) -> str:
        """The file with the line's number, which is counted now."""
        (file, _, _), offset = self._place(number)
        with opened(Path(file)) as stream:
            before, left = 1, offset
            while left and (chunk := stream.read(min(left, MAX_LINE_BYTES))):
                before, left = before + chunk.count(b"\n"), left - len(chunk)
        return f"{file}:{before}"

    def _line(self, number: int) -> RawRow:
        stamp, offset = self._place(number)
        with opened(Path(stamp[0])) as stream:
            _require_same(stamp, os.fstat(stream.fileno()))
            stream.seek(offset)
            value, flaw = parsed(stream.readline(MAX_LINE_BYTES))
        return RawRow(f"{stamp[0]}, byte {offset}", value, 0, flaw)

    def _place(self, number: int) -> tuple[tuple[str, int, int], int]:
        """The stamp of a row's file, and the byte at which the row begins."""
        position = int(self.index.positions.array[number])
        file = bisect_right(self._ends, position)
        return self.stamps[file], position - (self._ends[file] - self.stamps[file][1])

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(size for _, size, _ in self.stamps))


def _lines(root: Path, files: list[Path], source: RowSource, one: OneFormat, progress: Progress) -> Lines:
    stamps = stamps_of_files(files)
    num_bytes = sum(size for _, size, _ in stamps)

    def index() -> RowIndex:
        positions = _checked(open_rows(source).read(), one, progress)
        return RowIndex(positions=positions, content=content_fingerprint(root, files, "lines"))

    facts = ("lines", source.model_dump_json(), one.kind, stamps)
    kept = cached(facts, num_bytes, index, lambda: progress(0, num_bytes), classes=(RowIndex,), folder=INDEXES)
    return Lines(stamps=stamps, source=source, index=kept)


def _checked(rows: Iterator[Row], one: OneFormat | None, progress: Progress) -> SharedArray:
    """The positions of rows, int64, shape `(n,)`.

    Raises:
        DataError: a row cannot be used.
    """
    positions, bad, count = SharedArray.new("<i8"), BadRows(instead=NO_SKIP), 0
    while batch := list(islice(rows, _ROWS_PER_READ)):
        progress(*batch[0].read)
        for row in batch:
            try:
                _check(row, one)
            except BadRow as error:
                bad.add(row.where, error)
        positions.append([row.read[0] for row in batch])
        count += len(batch)
    if bad.found:
        raise DataError(bad.refusal(count))
    return positions


def _check(row: Row, one: OneFormat | None) -> None:
    if row.flaw:
        raise BadRow(row.flaw)
    if one:
        one.of(row)


# -- tables


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of a table of the datasets library, whose files are mapped."""

    table: Any
    """a `Dataset` that gives Arrow tables"""
    place: str
    source: RowSource
    stamps: Stamps
    """of the table's files"""
    index: RowIndex

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """The rows with these numbers."""
        for stamp in self.stamps:
            # A file that is gone stays mapped.
            with suppress(FileNotFoundError):
                _require_same(stamp, Path(stamp[0]).stat())
        positions = [int(self.index.positions.array[number]) for number in numbers]
        try:
            values = plain_values(self.table[positions])
        except Exception as error:  # errors of the library, of pyarrow, or of Python for a value
            raise unreadable(self.place, error) from error
        found = (
            row_of(RawRow(self.where(number), value, 0), (0, 1)) for number, value in zip(numbers, values, strict=True)
        )
        return [renamed(row, self.source.columns) for row in found]

    def where(self, number: int) -> str:
        """The table with the row's number in it."""
        return f"{self.place}, row {self.index.positions.array[number]}"


def _table(rows: TableRows, progress: Progress, *, of_rows: bool) -> Table:
    """Access to a table. `of_rows`: rows may name their split."""
    table, place, source = rows.table, rows.place, rows.source
    require_plain(table.data.schema, place)
    if source.columns:
        require_columns(table, place, source.columns.values())
    files = cached_files(table)
    if not files and len(table):
        raise DataError.of(
            "data.path",
            f"the datasets library keeps {place} in memory, and on_demand needs its files. Unset "
            "HF_DATASETS_IN_MEMORY_MAX_SIZE, or write data.tokenize: ahead",
        )
    stamps = stamps_of_files(files)
    num_bytes = sum(size for _, size, _ in stamps)

    def index() -> RowIndex:
        positions = _positions(table, place, source, progress, of_rows=of_rows)
        root = Path(os.path.commonpath([file.parent for file in files])) if files else Path()
        return RowIndex(positions=positions, content=content_fingerprint(root, list(files), "table"))

    # The library's fingerprint: a part of a split has the files of the whole.
    facts = ("table", source.model_dump_json(), table._fingerprint, len(table), stamps)  # noqa: SLF001
    kept = cached(facts, num_bytes, index, lambda: progress(0, num_bytes), classes=(RowIndex,), folder=INDEXES)
    read = table.select_columns(sorted(set(source.columns.values()))) if source.columns else table
    return Table(table=read.with_format("arrow"), place=place, source=source, stamps=stamps, index=kept)


def _require_same(stamp: tuple[str, int, int], now: os.stat_result) -> None:
    """Check that a file has not changed since it was opened.

    Raises:
        DataError: it has.
    """
    if (now.st_size, now.st_mtime_ns) != stamp[1:]:
        raise DataError.of("data.path", f"{stamp[0]} has changed since it was opened. Restore it, or start a new run")


def _positions(table: Any, place: str, source: RowSource, progress: Progress, *, of_rows: bool) -> SharedArray:
    if of_rows and "split" in table.column_names:
        names = TableRows(table.select_columns(["split"]), place, source.model_copy(update={"columns": None}))
        return _checked(of_split(names.read, source.split, place), None, progress)
    if of_rows and source.split is not None and str(table.split) != source.split:
        raise no_split(source.split, place)
    positions = SharedArray.new("<i8")
    positions.append(np.arange(len(table)))
    return positions
