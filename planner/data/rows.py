"""The rows of a data set in order, over all of its files or of one split."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

from planner.data.paths import resolve
from planner.data.row import Row, row_of
from planner.data.row_files import reader_of
from planner.data.tables import load_folder, table_rows
from planner.errors import DataError

_ROWS_PER_READ = 1000


def read_rows(path: str, split: str | None) -> Iterator[Row]:
    """Every row at `path` that belongs to the split, in the order of files and lines.

    Raises:
        DataError: there is no data, a file is broken, or the split is missing or ambiguous.
    """
    folder = Path(path)
    if folder.is_dir():
        yield from _folder_rows(folder, split)
        return
    _, files = resolve(path)
    yield from _of_split(lambda: _file_rows(files), split, path)


def _file_rows(files: list[Path]) -> Iterator[Row]:
    before = (0, *accumulate(file.stat().st_size for file in files))
    for file, start in zip(files, before, strict=False):
        for found in reader_of(file)(file):
            yield row_of(found, (start + found.read, before[-1]))


def _folder_rows(folder: Path, split: str | None) -> Iterator[Row]:
    loaded = load_folder(folder)
    if isinstance(loaded, dict):  # a DatasetDict: split name -> table
        chosen = _chosen({str(name) for name in loaded}, split, str(folder))
        yield from _table_rows(loaded[chosen], f"{folder}/{chosen}")
    elif "split" not in loaded.column_names and split is not None and str(loaded.split) == split:
        yield from _table_rows(loaded, str(folder))
    else:
        yield from _of_split(lambda: _table_rows(loaded, str(folder)), split, str(folder))


def _table_rows(table: Any, place: str) -> Iterator[Row]:
    return (row_of(found, (found.read, len(table))) for found in table_rows(table, place))


# -- splits


def _of_split(read: Callable[[], Iterator[Row]], split: str | None, path: str) -> Iterator[Row]:
    """The rows of a split. Rows may name their split, as HALOs writes them: then all must, and all are read twice.

    Raises:
        DataError: the split is missing or ambiguous.
    """
    rows = read()
    first = list(islice(rows, _ROWS_PER_READ))
    whole = [row for row in first if not row.flaw]
    if not whole or not _split_of(whole[0]):
        if split is not None:
            raise DataError(
                f"data.split is {split!r}, but the rows at {path!r} have no text as split. Leave data.split out"
            )
        for row in chain(first, rows):
            yield replace(row, flaw="it names a split, and rows before it do not") if _split_of(row) else row
        return
    wanted = _chosen({name for row in read() if (name := _split_of(row))}, split, path)
    for row in read():
        if row.flaw or _split_of(row) == wanted:
            yield row
        elif not _split_of(row):
            yield replace(row, flaw="it names no split, and others do")


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
