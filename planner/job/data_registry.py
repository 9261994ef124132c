"""All kinds of data: planner's own, and those of installed packages (the entry points `planner.data_kinds`).

The value of an entry point names a `DataSpec`. `planner.job.kind_registry` says when a package is imported.
"""

from planner.errors import DataKindUnavailable
from planner.job.data import Data, DataSpec
from planner.job.data_kinds import OURS
from planner.job.kind_registry import KindRegistry

DATA_KINDS = KindRegistry(
    what="kind of data",
    group="planner.data_kinds",
    ours=OURS,
    spec=DataSpec,
    unavailable=DataKindUnavailable,
)
"""every kind of data. Its methods raise `DataKindUnavailable`"""


def data_spec_of(data: Data) -> DataSpec:
    """The facts about the kind of a job's data.

    Raises:
        DataKindUnavailable: no such kind is installed, or its package cannot be used.
    """
    return DATA_KINDS.spec_of_kind(data.kind)
