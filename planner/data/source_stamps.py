"""A cheap way to notice that the rows of a job have changed, without reading them."""

from planner.data.hub_sets import cached_files, is_hub_name, load_set
from planner.data.paths import Stamps, source_stamps, stamps_of_files
from planner.job import Data, Rows, RowSource


def data_stamps(data: Data) -> Stamps:
    """Stamps of all files that hold a job's data.

    Raises:
        DataError: there is no file, or one cannot be read.
    """
    return row_stamps(data) if isinstance(data, Rows) else source_stamps(data.path)


def row_stamps(data: Rows) -> Stamps:
    """Stamps of all files that hold rows, set by set.

    Raises:
        DataError: there is no file, or one cannot be read.
    """
    return tuple(stamp for each in data.sets for stamp in _stamps(each))


def _stamps(source: RowSource) -> Stamps:
    if not is_hub_name(source.path):
        return source_stamps(source.path)
    # Files of the library's cache, whose names contain the commit of the data set.
    return stamps_of_files(cached_files(load_set(source)))
