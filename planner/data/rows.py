"""JSON arrays, JSON lines, parquet files and data set folders as rows: a place, a mapping, and how far one is."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

from planner.base.extras import how_to_install
from planner.data.arrow_types import require_plain
from planner.data.json_array import array_values
from planner.data.json_types import json_type
from planner.data.paths import lines_of, opened, resolve
from planner.errors import DataError

_ROWS_PER_READ = 1000
_PARQUET = b"PAR1"
# What `save_to_disk` of the datasets library leaves in a folder.
_SPLITS_FILE, _DATASET_FILE = "dataset_dict.json", "dataset_info.json"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row as it lies in a file."""

    where: str
    """the file and the line, or the number of the row from 0"""
    fields: dict[str, Any]
    """what it holds; what is null counts as not there"""
    flaw: str
    """why it is no row at all; empty if it is one"""
    read: tuple[int, int]
    """how much had been read before it, and how much there is"""


def read_rows(path: str, split: str | None) -> Iterator[Row]:
    """Every row of `path` that is of the split, in the order of files and lines.

    Raises:
        DataError: nothing is there, a file is broken, or the split is not there or not clear.
    """
    folder = Path(path)
    if folder.is_dir():
        yield from _folder_rows(folder, split)
        return
    _, files = resolve(path)
    yield from _of_split(lambda: _file_rows(files), split, path)


def _of_split(read: Callable[[], Iterator[Row]], split: str | None, path: str) -> Iterator[Row]:
    """Rows may say which split they are of, as HALOs writes them: then all do, and all is read once more to know which.

    Raises:
        DataError: the split is not there or not clear.
    """
    rows = read()
    first = list(islice(rows, _ROWS_PER_READ))
    whole = [row for row in first if not row.flaw]
    if not whole or not _split_of(whole[0]):
        if split is not None:
            raise DataError(f"data.split: {split!r}, but the rows at {path!r} name no split; leave data.split out")
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
        DataError: it is not there, or none was named and there are several.
    """
    if wanted is None and len(splits) == 1:
        return next(iter(splits))
    if (chosen := wanted or "train") not in splits:
        raise DataError(f"data.split: no {chosen!r} at {path!r}; write one of {', '.join(sorted(splits))}")
    return chosen


def _file_rows(files: list[Path]) -> Iterator[Row]:
    """By what a file begins with, whatever its name."""
    sizes = [file.stat().st_size for file in files]
    before = (0, *accumulate(sizes))
    for file, start in zip(files, before, strict=False):
        with opened(file) as stream:
            head = stream.read(4096)
        if head.startswith(_PARQUET):
            yield from _parquet_rows(file, start, before[-1])
        elif head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            yield from _array_rows(file, start, before[-1])
        else:
            yield from _line_rows(file, start, before[-1])


def _line_rows(file: Path, start: int, total: int) -> Iterator[Row]:
    with opened(file) as stream:
        for number, line in enumerate(lines_of(file, stream), 1):
            if line.strip():
                value, flaw = _parsed(line)
                yield _row(f"{file}:{number}", value, (start, total), flaw)
            start += len(line)


def _parsed(line: bytes) -> tuple[Any, str]:
    try:
        return json.loads(line), ""
    except ValueError as error:
        return None, f"not JSON ({error})"
    except RecursionError:
        return None, "nested too deeply"


def _array_rows(file: Path, start: int, total: int) -> Iterator[Row]:
    try:
        with opened(file) as stream:
            for number, (value, read) in enumerate(array_values(stream)):
                yield _row(f"{file}, row {number}", value, (start + read, total))
    except ValueError as error:
        raise DataError(
            f"data.path: {file} begins as a JSON array and is none ({error}); mend it, or write one object per line"
        ) from error
    except RecursionError as error:
        raise DataError(f"data.path: {file} is nested too deeply") from error


def _parquet_rows(file: Path, start: int, total: int) -> Iterator[Row]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise _missing("pyarrow", f"{file} is a parquet file") from error
    size = file.stat().st_size
    try:
        with parquet.ParquetFile(file) as table:
            require_plain(table.schema_arrow, str(file))
            number, count = 0, max(table.metadata.num_rows, 1)
            for batch in table.iter_batches(_ROWS_PER_READ):
                for value in _values(batch):
                    yield _row(f"{file}, row {number}", value, (start + size * number // count, total))
                    number += 1
    except DataError:
        raise
    except Exception as error:  # pyarrow's, Python's of a value, those of a column's own type
        raise DataError(f"data.path: cannot read {file}: {_first_line(error)}") from error


def _folder_rows(folder: Path, split: str | None) -> Iterator[Row]:
    if not (folder / _SPLITS_FILE).is_file() and not (folder / _DATASET_FILE).is_file():
        raise DataError(
            f"data.path: {folder} is no data set folder (one that `save_to_disk` of the datasets library wrote); for "
            f"files in it write a glob, such as {folder}/*.jsonl"
        )
    try:
        from datasets import DatasetDict, load_from_disk
    except ImportError as error:
        raise _missing("datasets", f"{folder} is a data set folder") from error
    try:
        found = load_from_disk(str(folder))
    except Exception as error:  # its own errors, pyarrow's, the JSON's
        raise DataError(f"data.path: cannot read the data set folder {folder}: {_first_line(error)}") from error
    if isinstance(found, DatasetDict):
        chosen = _chosen({str(name) for name in found}, split, str(folder))
        yield from _table_rows(found[chosen], f"{folder}/{chosen}")
    elif "split" not in found.column_names and split is not None and str(found.split) == split:
        yield from _table_rows(found, str(folder))
    else:
        yield from _of_split(lambda: _table_rows(found, str(folder)), split, str(folder))


def _table_rows(table: Any, place: str) -> Iterator[Row]:
    """Of a data set of the datasets library."""
    require_plain(table.data.schema, place)
    number, count = 0, len(table)
    try:
        for batch in table.with_format("arrow").iter(_ROWS_PER_READ):
            for value in _values(batch):
                yield _row(f"{place}, row {number}", value, (number, count))
                number += 1
    except Exception as error:  # its own errors, pyarrow's, Python's of a value
        raise DataError(f"data.path: cannot read {place}: {_first_line(error)}") from error


def _values(batch: Any) -> list[dict[str, Any]]:
    """The rows of a `pyarrow` batch or table. Dates and times become integers: Python's types have a smaller range."""
    import pyarrow as pa

    for number, column in enumerate(batch.schema):
        if (kind := _timeless(column.type)) != column.type:
            batch = batch.set_column(number, pa.field(column.name, kind), batch.column(number).cast(kind))
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def _timeless(kind: Any) -> Any:
    """The type with integers instead of dates, times and durations, also inside structs and lists."""
    import pyarrow as pa

    if any(
        is_kind(kind) for is_kind in (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_duration)
    ):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_timeless(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        made = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return made(kind.value_field.with_type(_timeless(kind.value_type)))
    return kind


def _row(where: str, value: Any, read: tuple[int, int], flaw: str = "") -> Row:
    if not flaw and not isinstance(value, dict):
        flaw = f"{json_type(value)} instead of an object"
    fields = {} if flaw else {key: item for key, item in value.items() if item is not None}
    return Row(where=where, fields=fields, flaw=flaw, read=read)


def _missing(library: str, why: str) -> DataError:
    return DataError(f"data.path: {why}, and {library} is not installed: {how_to_install('hf')}")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
