"""What a live board remembers of a run's ledger: its view, its loss curve and its last events."""

from collections.abc import Iterable, Sequence

from planner.report.run_table import Event, time_after
from planner.report.run_view import RunView, fold
from planner.store.records import GenerationRecord, Record, StepRecord

# More points than a wide terminal has dots.
_MOST_POINTS = 4096
_MOST_EVENTS = 50


class RunHistory:
    """Grows with each ledger record. Give it the records oldest first."""

    def __init__(self) -> None:
        self.view = RunView(event="")
        """the state after the last record"""
        self.events: list[Event] = []
        """the last events, oldest first. Commits are none"""
        self.launch_id = ""
        """of the newest generation"""
        self._losses: list[tuple[int, float]] = []
        self._time_s: float | None = None

    @property
    def losses(self) -> Sequence[tuple[int, float]]:
        """(steps done, loss), ascending. A step that was done again has its last loss. Long runs have means."""
        return self._losses

    def add(self, records: Iterable[Record]) -> None:
        """Add the next records."""
        for record in records:
            self._time_s = time_after(record, self._time_s)
            self.view, lines = fold(self.view, [record])
            self.events = [*self.events, *(Event(time_s=self._time_s, text=line) for line in lines)][-_MOST_EVENTS:]
            if isinstance(record, GenerationRecord):
                self.launch_id = record.launch_id
                self._losses = [point for point in self._losses if point[0] <= record.step]
            elif isinstance(record, StepRecord) and not record.skipped:
                self._losses.append((record.step + 1, record.loss))
                self._thin_out()

    def _thin_out(self) -> None:
        """Halve the points when there are too many: each is then the mean of two."""
        if len(self._losses) > _MOST_POINTS:
            pairs = zip(self._losses[::2], self._losses[1::2], strict=False)
            self._losses = [(earlier[0], (earlier[1] + later[1]) / 2) for earlier, later in pairs]
