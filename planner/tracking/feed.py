"""The rows of a run that have become final, read from its ledger."""

from collections.abc import Iterator

from planner.store.follow import WholeLedger
from planner.store.records import GenerationRecord
from planner.store.run_folder import RunFolder
from planner.tracking.final_steps import FinalSteps
from planner.tracking.row import Row


class Feed:
    """Yields each final row of a run once. It begins with the first step."""

    def __init__(self, run: RunFolder) -> None:
        self._ledger, self._steps = WholeLedger(run), FinalSteps()

    @property
    def header(self) -> GenerationRecord | None:
        """The header of the newest generation that was read, or None."""
        return self._steps.header

    @property
    def live(self) -> dict[str, float]:
        """See `FinalSteps.live`."""
        return self._steps.live

    def new_rows(self) -> Iterator[Row]:
        """Yield the rows that have become final since the last call.

        Raises:
            NewerFormat: another version of planner wrote a part of the ledger.
            StoreError: the store cannot be reached.
        """
        for generation, record in self._ledger.new_records():
            yield from self._steps.add(generation, record)

    def last_rows(self) -> Iterator[Row]:
        """Yield the rest of the final rows. Call it when no driver runs the run.

        Raises:
            NewerFormat: another version of planner wrote a part of the ledger.
            StoreError: the store cannot be reached.
        """
        yield from self.new_rows()
        yield from self._steps.flush()
