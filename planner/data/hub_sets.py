"""Data sets of the Hugging Face hub, by name or as a folder with the hub's layout, read by the datasets library.

Its files of rows become Arrow files in the library's cache. A name needs the network once, then the cache is enough
(`HF_HUB_OFFLINE=1` uses nothing else).
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.base.disk import expanded, is_relative
from planner.base.text import how_to_install
from planner.errors import DataError, shortened
from planner.job import RowSource

# `owner/name`, as the hub allows them.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_FILES = (".json", ".jsonl", ".ndjson", ".parquet", ".csv", ".tsv", ".txt", ".arrow", ".gz", ".zst")
_MOST_REASON = 300


def is_hub_name(path: str) -> bool:
    """Whether a path can only be a data set on the hub: nothing is there, and it has the form `owner/name`."""
    is_name = bool(_NAME.fullmatch(path)) and is_relative(path) and not path.lower().endswith(_FILES)
    try:
        return is_name and not expanded(path).exists()
    except OSError:
        return False


def load_set(source: RowSource) -> Any:
    """The `Dataset`, or the `DatasetDict` if the job names no split.

    Raises:
        DataError: there is no such data set, configuration or split, or the hub cannot be reached.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError.of(
            "data.path",
            f"{source.path} is a data set of the hub, but datasets is not installed: {how_to_install('hf')}",
        ) from error
    path = source.path if is_hub_name(source.path) else str(expanded(source.path).absolute())
    try:
        with _quiet(datasets):
            return datasets.load_dataset(path, source.config, split=source.split, revision=source.revision)
    except Exception as error:  # errors of the library, of the hub's client, of pyarrow, or OSError
        raise _not_loaded(source, error) from error


def cached_files(loaded: Any) -> tuple[Path, ...]:
    """The Arrow files of a loaded data set. Their names contain the commit that they were made from."""
    tables = loaded.values() if isinstance(loaded, dict) else [loaded]
    return tuple(sorted({Path(file["filename"]) for table in tables for file in table.cache_files}))


@contextlib.contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Without the library's progress bars, which would cross planner's."""
    was_on = datasets.utils.are_progress_bars_disabled() is False
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if was_on:
            datasets.enable_progress_bars()


def _not_loaded(source: RowSource, error: Exception) -> DataError:
    lines = [line for line in str(error).splitlines() if line.strip()]
    reason = shortened(lines[0] if lines else type(error).__name__, _MOST_REASON)
    if not is_hub_name(source.path):
        return DataError.of("data.path", f"cannot load {source.name}: {reason}")
    return DataError.of(
        "data.path",
        f"no file or folder at {source.path!r}, and the hub has no such data set, or cannot be reached ({reason}). "
        "Write a file, a folder, a glob, or download the data set where there is a network",
    )
