"""Where the rows of a job are, and a cheap way to notice that they have changed, without reading them."""

from typing import TypeVar

from planner.data.hub_sets import cached_files, is_hub_name, load_set, names_commit, with_commit
from planner.data.paths import Stamps, absolute, source_stamps, stamps_of_files
from planner.data.sample_cache import LEAST_BYTES
from planner.job import Data, MixtureSet, Rows, RowsData, RowSource

_Rows = TypeVar("_Rows", bound=Rows)


def data_stamps(data: Data) -> Stamps:
    """Stamps of all files that hold a job's data.

    Raises:
        DataError: there is no file, or one cannot be read.
    """
    return row_stamps(data) if isinstance(data, RowsData) else source_stamps(data.path)


def row_stamps(data: Rows) -> Stamps:
    """Stamps of all files that hold rows, set by set.

    Raises:
        DataError: there is no file, or one cannot be read.
    """
    return tuple(stamp for each in data.sets for stamp in _stamps(each))


def _stamps(source: RowSource) -> Stamps:
    if not is_hub_name(source.path):
        return source_stamps(source.path)
    if names_commit(source):
        # Large enough for the cache of samples. Then a new process does not ask the hub.
        return ((f"{source.path}@{source.revision}", LEAST_BYTES, 0),)
    # The paths of these files contain the commit.
    return stamps_of_files(cached_files(load_set(source)))


def placed(data: Data) -> Data:
    """A copy of the section for processes with another working directory: absolute paths, and commits of hub names."""
    return placed_rows(data) if isinstance(data, RowsData) else data.model_copy(update={"path": absolute(data.path)})


def placed_rows(rows: _Rows) -> _Rows:
    """A copy of the rows for processes with another working directory."""
    return rows.with_sets(tuple(_placed(each) for each in rows.sets))


def _placed(source: MixtureSet) -> MixtureSet:
    if is_hub_name(source.path):
        return with_commit(source)
    return source.model_copy(update={"path": absolute(source.path)})
