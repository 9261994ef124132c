"""Follows a run's records while they are written. The terminal view uses it."""

from planner.errors import StoreError
from planner.store.ledger import segment_name, split_line
from planner.store.records import Record, parse_record
from planner.store.run_folder import RunFolder


class Follower:
    """Reads new records of the ledger. It does not check the chain.

    With `from_now`, it skips the generations that exist already.
    """

    def __init__(self, run: RunFolder, *, from_now: bool = False) -> None:
        self._run = run
        self._offsets: dict[int, int] = {}
        # A driver that starts now does not show the generations of earlier drivers.
        self._after = max(run.generations(), default=0) if from_now else 0

    def new_records(self) -> list[Record]:
        """Return the complete records since the last call, from the newest two generations, oldest first.

        Raises:
            StoreError: the store cannot be reached.
        """
        records: list[Record] = []
        for generation in [number for number in self._run.generations() if number > self._after][-2:]:
            offset = self._offsets.get(generation, 0)
            fresh = self._run.storage.read_from(segment_name(generation), offset)
            complete = fresh[: fresh.rfind(b"\n") + 1]
            self._offsets[generation] = offset + len(complete)
            for line in complete.decode(errors="replace").splitlines():
                records.extend(_parse(line))
        return records


def _parse(line: str) -> list[Record]:
    try:
        return [parse_record(split_line(line, "ledger")[1], "ledger")]
    except StoreError:
        return []
