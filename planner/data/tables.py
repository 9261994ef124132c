"""Reads rows of parquet files, and of folders that `save_to_disk` of the datasets library wrote."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.base.text import how_to_install
from planner.data.arrow_types import plain_values, require_plain
from planner.data.row import RawRow, unreadable
from planner.errors import DataError

_ROWS_PER_READ = 1000
# `save_to_disk` writes one of these.
_SPLITS_FILE, _DATASET_FILE = "dataset_dict.json", "dataset_info.json"


def parquet_rows(file: Path) -> Iterator[RawRow]:
    """The rows of a parquet file.

    Raises:
        DataError: pyarrow is not installed, the file is broken, or a column has a type that runs code.
    """
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
                for value in plain_values(batch):
                    yield RawRow(f"{file}, row {number}", value, size * number // count)
                    number += 1
    except DataError:
        raise
    except Exception as error:  # errors of pyarrow, of Python for a value, or of a column's own type
        raise unreadable(file, error) from error


def load_folder(folder: Path) -> Any:
    """The `Dataset` or `DatasetDict` in a folder.

    Raises:
        DataError: the folder has none, it is broken, or the datasets library is not installed.
    """
    if not (folder / _SPLITS_FILE).is_file() and not (folder / _DATASET_FILE).is_file():
        raise DataError.of(
            "data.path",
            f"{folder} is not a data set folder (written by `save_to_disk` of the datasets library). For "
            f"files in it, write a glob such as {folder}/*.jsonl",
        )
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise _missing("datasets", f"{folder} is a data set folder") from error
    try:
        return load_from_disk(str(folder))
    except Exception as error:  # errors of the library, of pyarrow, or of its JSON
        raise unreadable(f"the data set folder {folder}", error) from error


def table_rows(table: Any, place: str) -> Iterator[RawRow]:
    """The rows of a `Dataset`. `RawRow.read` counts rows.

    Raises:
        DataError: it is broken, or a column has a type that runs code.
    """
    require_plain(table.data.schema, place)
    number = 0
    try:
        for batch in table.with_format("arrow").iter(_ROWS_PER_READ):
            for value in plain_values(batch):
                yield RawRow(f"{place}, row {number}", value, number)
                number += 1
    except Exception as error:  # errors of the library, of pyarrow, or of Python for a value
        raise unreadable(place, error) from error


def _missing(library: str, why: str) -> DataError:
    return DataError.of("data.path", f"{why}, but {library} is not installed: {how_to_install('hf')}")
