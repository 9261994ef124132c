"""Reads rows of parquet files, and of folders that `save_to_disk` of the datasets library wrote."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.base.text import how_to_install
from planner.data.arrow_types import plain_values, require_plain
from planner.data.hub_sets import quiet
from planner.data.row import RawRow, unreadable
from planner.errors import DataError

# Reading a recipe imports this module, and numpy would take most of its time.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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


def is_saved_folder(folder: Path) -> bool:
    """Whether `save_to_disk` of the datasets library wrote a folder."""
    return (folder / _SPLITS_FILE).is_file() or (folder / _DATASET_FILE).is_file()


def load_folder(folder: Path) -> Any:
    """The `Dataset` or `DatasetDict` in a folder that `save_to_disk` wrote.

    Raises:
        DataError: it is broken, or the datasets library is not installed.
    """
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise _missing("datasets", f"{folder} is a data set folder") from error
    try:
        return load_from_disk(str(folder))
    except Exception as error:  # errors of the library, of pyarrow, or of its JSON
        raise unreadable(f"the data set folder {folder}", error) from error


def load_parquet(files: list[Path]) -> Any:
    """The rows of parquet files as one `Dataset`, which the datasets library keeps in its cache as Arrow files.

    Raises:
        DataError: the library is not installed, a file is broken, or a column has a type that runs code.
    """
    try:
        import datasets
        from pyarrow import parquet
    except ImportError as error:
        raise _missing("datasets", "data.tokenize: on_demand reads parquet files with it") from error
    try:
        for file in files:
            require_plain(parquet.read_schema(file), str(file))
        with quiet(datasets):
            return datasets.load_dataset("parquet", data_files=[str(file.absolute()) for file in files], split="train")
    except DataError:
        raise
    except Exception as error:  # errors of the library or of pyarrow
        raise unreadable(files[0] if len(files) == 1 else f"{files[0]} and others", error) from error


def require_columns(table: Any, place: str, columns: Iterable[str]) -> None:
    """Check that a `Dataset` has these columns.

    Raises:
        DataError: it lacks one.
    """
    if missing := [name for name in columns if name not in table.column_names]:
        raise DataError.of(
            "data.columns",
            f"{place} has no column {', '.join(missing)}. It has {', '.join(sorted(table.column_names))}",
        )


def table_rows(table: Any, place: str, numbers: "NDArray[np.int64]") -> Iterator[RawRow]:
    """The rows of a `Dataset` with these numbers. `RawRow.read` counts rows.

    Raises:
        DataError: it is broken, or a column has a type that runs code.
    """
    require_plain(table.data.schema, place)
    is_whole = len(numbers) == len(table) and all(map(int.__eq__, numbers.tolist(), range(len(table))))
    try:
        chosen = table if is_whole else table.select(numbers)
        read = 0
        for batch in chosen.with_format("arrow").iter(_ROWS_PER_READ):
            for value in plain_values(batch):
                yield RawRow(f"{place}, row {numbers[read]}", value, read)
                read += 1
    except Exception as error:  # errors of the library, of pyarrow, or of Python for a value
        raise unreadable(place, error) from error


def _missing(library: str, why: str) -> DataError:
    return DataError.of("data.path", f"{why}, but {library} is not installed: {how_to_install('hf')}")
