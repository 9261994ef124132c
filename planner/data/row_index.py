"""Where the rows of a data set are. Loader processes map it, and it is kept on the machine's disk."""

from dataclasses import dataclass

from planner.data.shared_array import SharedArray


@dataclass(frozen=True, kw_only=True, eq=False)
class RowIndex:
    """The position of each row, and what identifies the files that hold them."""

    positions: SharedArray
    """int64: the byte at which each row begins, counted over all files, or its number in a table"""
    content: str
    """64 hex digits over the content of the files"""

    @property
    def arrays(self) -> dict[str, SharedArray]:
        """The arrays by their names."""
        return {"positions": self.positions}
