"""The rows of a data set in order, over all of its files or of one split."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from planner.data.hub_sets import is_hub_name, load_set
from planner.data.named_loaders import LOADERS, NamedLoader, loaded_rows
from planner.data.paths import resolve
from planner.data.row import Row, row_of
from planner.data.row_files import reader_of
from planner.data.tables import is_saved_folder, load_folder, require_columns, table_rows
from planner.errors import DataError
from planner.job import RowSource

_ROWS_PER_READ = 1000


class SourceRows(Protocol):
    """The rows of one data set, opened."""

    def count(self) -> int:
        """How many rows there are, those that cannot be used included."""
        ...

    def read(self, times: NDArray[np.int64] | None = None) -> Iterator[Row]:
        """The rows in order, each as often as `times` says. Without it, each once.

        Raises:
            DataError: a file is broken.
        """
        ...


def open_rows(source: RowSource, *, takes_pairs: bool = True) -> SourceRows:
    """The rows that a job names.

    Args:
        source: where they are, and whose rules make them.
        takes_pairs: whether a named loader makes pairs of a prompt's completions. Else it chooses one.

    Raises:
        DataError: there is no data, a file is broken, or the split is missing or ambiguous.
    """
    if source.loader is None:
        return _found(source)
    loader, split = LOADERS[source.loader], source.split or "train"
    found = _found(_for_loader(source, loader, split))
    times = None
    if loader.chosen is not None:
        times = np.zeros(found.count(), np.int64)
        times[loader.chosen(len(times), split)] = 1
    return _Listed(list(loaded_rows(loader, found.read(times), split, takes_pairs=takes_pairs)))


def _for_loader(source: RowSource, loader: NamedLoader, split: str) -> RowSource:
    """The rows that a named loader reads.

    Raises:
        DataError: it has no such split.
    """
    if not is_hub_name(source.path) and not Path(source.path).is_dir():
        return source.model_copy(update={"split": None})  # files, which are the split
    theirs = source.split
    if loader.splits is not None and (theirs := loader.splits.get(split)) is None:
        raise DataError.of(
            "data.split",
            f"{split!r}, but the loader {source.loader} has {' and '.join(loader.splits)}. Write one of them",
        )
    return source.model_copy(update={"split": theirs, "folder": source.folder or loader.folder})


def _found(source: RowSource) -> SourceRows:
    folder = Path(source.path)
    if folder.is_dir() and is_saved_folder(folder):
        _refuse_hub_keys(source)
        return _saved(folder, source)
    if folder.is_dir() or is_hub_name(source.path):
        return _of_hub(source)
    _refuse_hub_keys(source)
    _, files = resolve(source.path)
    return _Stream(lambda: of_split(lambda: _file_rows(files), source.split, source.path), source)


def read_rows(path: str, split: str | None) -> Iterator[Row]:
    """Every row at `path` that belongs to the split.

    Raises:
        DataError: there is no data, a file is broken, or the split is missing or ambiguous.
    """
    return _found(RowSource(path=path, split=split)).read()


@dataclass(frozen=True)
class _Stream:
    """Rows that can only be read one after another."""

    rows: Callable[[], Iterator[Row]]
    source: RowSource

    def count(self) -> int:
        return sum(1 for _ in self.rows())

    def read(self, times: NDArray[np.int64] | None = None) -> Iterator[Row]:
        rows = _with_columns(self.rows(), self.source)
        if times is None:
            yield from rows
            return
        for number, row in enumerate(rows):
            for _ in range(times[number] if number < len(times) else 0):
                yield row


@dataclass(frozen=True)
class TableRows:
    """The rows of a table of the datasets library."""

    table: Any
    place: str
    source: RowSource

    def count(self) -> int:
        """How many rows the table has."""
        return len(self.table)

    def read(self, times: NDArray[np.int64] | None = None) -> Iterator[Row]:
        """The rows in order, each as often as `times` says. Without it, each once.

        Raises:
            DataError: the table is broken, or lacks a column.
        """
        columns = self.source.columns
        if columns:
            require_columns(self.table, self.place, columns.values())
        numbers = np.arange(len(self.table)) if times is None else np.repeat(np.arange(len(times)), times)
        rows = (row_of(found, (found.read, len(numbers))) for found in table_rows(self.table, self.place, numbers))
        yield from _with_columns(rows, self.source)


@dataclass(frozen=True)
class _Listed:
    """Rows in memory."""

    rows: list[Row]

    def count(self) -> int:
        return len(self.rows)

    def read(self, times: NDArray[np.int64] | None = None) -> Iterator[Row]:
        for number, row in enumerate(self.rows):
            yield from [row] * (1 if times is None else int(times[number]))


def _refuse_hub_keys(source: RowSource) -> None:
    for key in ("config", "folder", "revision"):
        if getattr(source, key) is not None:
            raise DataError.of(
                f"data.{key}", f"{source.path} is here, and only a data set of the hub has a {key}. Leave it out"
            )


def _file_rows(files: list[Path]) -> Iterator[Row]:
    before = (0, *accumulate(file.stat().st_size for file in files))
    for file, start in zip(files, before, strict=False):
        for found in reader_of(file)(file):
            yield row_of(found, (start + found.read, before[-1]))


def _saved(folder: Path, source: RowSource) -> SourceRows:
    """The rows of a folder that `save_to_disk` wrote."""
    loaded = load_folder(folder)
    if isinstance(loaded, dict):  # a DatasetDict: split name -> table
        chosen = _chosen({str(name) for name in loaded}, source.split, str(folder))
        return TableRows(loaded[chosen], f"{folder}/{chosen}", source)
    whole = TableRows(loaded, str(folder), source.model_copy(update={"columns": None}))
    if "split" in loaded.column_names:
        return _Stream(lambda: of_split(whole.read, source.split, str(folder)), source)
    if source.split is not None and str(loaded.split) != source.split:
        raise no_split(source.split, str(folder))
    return TableRows(loaded, str(folder), source)


def _of_hub(source: RowSource) -> SourceRows:
    """The rows of a data set on the hub, or of a folder with its layout."""
    loaded = load_set(source)
    if not isinstance(loaded, dict):
        return TableRows(loaded, source.name, source)
    chosen = _chosen({str(name) for name in loaded}, None, source.name)
    return TableRows(loaded[chosen], f"{source.name} {chosen}", source)


# -- columns


def _with_columns(rows: Iterator[Row], source: RowSource) -> Iterator[Row]:
    """The rows with the columns that the job names, under planner's names."""
    columns = source.columns
    if columns is None:
        yield from rows
        return
    missing = set(columns.values())
    for row in rows:
        missing -= row.fields.keys() | row.nulls
        yield renamed(row, columns)
    if missing:
        raise DataError.of(
            "data.columns", f"no row of {source.name} has {', '.join(sorted(missing))}. Correct the names"
        )


def renamed(row: Row, columns: Mapping[str, str] | None) -> Row:
    """The row with these columns, under planner's names."""
    if columns is None:
        return row
    return replace(row, fields={ours: row.fields[theirs] for ours, theirs in columns.items() if theirs in row.fields})


# -- splits


def of_split(read: Callable[[], Iterator[Row]], split: str | None, path: str) -> Iterator[Row]:
    """The rows of a split. Rows may name their split, as HALOs writes them: then all must, and all are read twice.

    Raises:
        DataError: the split is missing or ambiguous.
    """
    rows = read()
    first = list(islice(rows, _ROWS_PER_READ))
    whole = [row for row in first if not row.flaw]
    if not whole or not _split_of(whole[0]):
        if split is not None:
            raise no_split(split, path)
        for row in chain(first, rows):
            yield replace(row, flaw="it names a split, and rows before it do not") if _split_of(row) else row
        return
    wanted = _chosen({name for row in read() if (name := _split_of(row))}, split, path)
    for row in read():
        if row.flaw or _split_of(row) == wanted:
            yield row
        elif not _split_of(row):
            yield replace(row, flaw="it names no split, and others do")


def no_split(split: str, path: str) -> DataError:
    """The error for a split that rows do not name."""
    return DataError(f"data.split is {split!r}, but the rows at {path!r} have no text as split. Leave data.split out")


def _split_of(row: Row) -> str:
    name = row.fields.get("split")
    return name if isinstance(name, str) else ""


def _chosen(splits: set[str], wanted: str | None, path: str) -> str:
    """The split to read.

    Raises:
        DataError: it is missing, or the job names none and there are several.
    """
    if wanted is None and len(splits) == 1:
        return next(iter(splits))
    if (chosen := wanted or "train") not in splits:
        raise DataError(f"data.split: no {chosen!r} at {path!r}. Write one of {', '.join(sorted(splits))}")
    return chosen
