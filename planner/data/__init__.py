"""Data sets as maps: a row number in, its token ids out. numpy only.

The room does not know order (which row comes when), batches, torch or Ray. A stream without random access is
not a data set here: it could not be resumed at another world size.
"""

from planner.data.base import AnyDataset, Dataset, check_sum, check_sum_of_parts, evidence, open_dataset

__all__ = ["AnyDataset", "Dataset", "check_sum", "check_sum_of_parts", "evidence", "open_dataset"]
