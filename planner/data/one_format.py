"""Requires that all rows of a data set have one format."""

from dataclasses import dataclass

from planner.data.examples import BadRow
from planner.data.formats import RowFormat, format_of
from planner.data.row import Row
from planner.errors import DataError


@dataclass
class OneFormat:
    """The format of the first row with a known format, which all others must have."""

    kind: str
    """`data.kind`"""
    formats: tuple[RowFormat, ...]
    """those that the kind accepts. The first match wins"""
    found: RowFormat | None = None
    where: str = ""
    """the place of that first row"""

    def of(self, row: Row) -> RowFormat:
        """The row's format.

        Raises:
            BadRow: the row has none.
            DataError: rows before it have another one.
        """
        if row.flaw:
            raise BadRow(row.flaw)
        found = format_of(row.fields, self.kind, self.formats)
        if self.found is None:
            self.found, self.where = found, row.where
        # `!=` and not `is`: a loader process has a copy.
        elif found != self.found:
            raise DataError(
                f"{row.where}: a row of {found.name}, after rows of {self.found.name} ({self.where}). "
                "Write all rows in one format"
            )
        return found
