"""Follows a run's records while they are written: the newest for terminals and metrics, or all for trackers."""

from collections.abc import Iterator

from planner.store.ledger import readable, records_among, require_segment_format, segment_name
from planner.store.records import Record
from planner.store.run_folder import RunFolder
from planner.store.survey import MOST_GENERATIONS

# A header has about 2 KB.
_HEAD_BYTES = 2**14


class Follower:
    """Reads new records of the ledger. It does not check the chain."""

    def __init__(self, run: RunFolder, *, from_now: bool = False, tail_bytes: int = 0) -> None:
        """Begin to follow.

        Args:
            run: the run.
            from_now: skip the generations that exist already.
            tail_bytes: read the newest 32 generations that exist already: of each its header, and about this much from
                its end. 0: read the newest two in full.
        """
        self._run = run
        self._offsets: dict[int, int] = {}
        self._tail_bytes = tail_bytes
        # A driver that starts now does not show the generations of earlier drivers.
        self._after = max(run.generations(), default=0) if from_now else 0

    def new_records(self) -> list[Record]:
        """Return the complete records since the last call, from the newest two generations, oldest first.

        Raises:
            StoreError: the store cannot be reached.
        """
        numbers = [number for number in self._run.generations() if number > self._after]
        most = MOST_GENERATIONS if self._tail_bytes and not self._offsets else 2
        return [record for number in numbers[-most:] for record in self._records_of(number)]

    def _records_of(self, generation: int) -> Iterator[Record]:
        name, storage = segment_name(generation), self._run.storage
        if self._tail_bytes and generation not in self._offsets:
            skipped = max(storage.size_bytes(name) - self._tail_bytes, 0)
            first = storage.read_first(name, _HEAD_BYTES).partition(b"\n")[0] if skipped else b""
            if len(first) < skipped:
                yield from records_among(first)
                torn = storage.read_from(name, skipped)
                self._offsets[generation] = skipped + torn.find(b"\n") + 1
        offset = self._offsets.get(generation, 0)
        fresh = storage.read_from(name, offset)
        # A line without an end is still being written.
        complete = fresh[: fresh.rfind(b"\n") + 1]
        self._offsets[generation] = offset + len(complete)
        yield from records_among(complete)


class WholeLedger:
    """Reads all records of a run, of every generation, and then those that are added. It does not check the chain.

    Memory is bounded: a segment is read in pieces. A segment is read to its end after the next one has been seen, and
    never again. So no record is missed that was written before the next generation began.
    """

    def __init__(self, run: RunFolder, piece_bytes: int = 2**20) -> None:
        self._run, self._piece_bytes = run, piece_bytes
        self._offsets: dict[int, int] = {}
        self._finished = 0

    def new_records(self) -> Iterator[tuple[int, Record]]:
        """Yield the complete records since the last call, each with its generation, by generation and then by place.

        Raises:
            NewerFormat: another version of planner wrote a segment.
            StoreError: the store cannot be reached.
        """
        unread = [number for number in self._run.segments() if number > self._finished]
        for number in unread:
            for line in self._lines(number):
                if (record := readable(line)) is not None:
                    yield number, record
            if number != unread[-1]:
                self._finished = number
                self._offsets.pop(number, None)

    def _lines(self, generation: int) -> Iterator[str]:
        """The complete lines of a segment that were not read yet."""
        name, size_bytes = segment_name(generation), self._piece_bytes
        while True:
            offset = self._offsets.get(generation, 0)
            piece = self._run.storage.read_part(name, offset, size_bytes)
            if not offset:
                require_segment_format(piece, name)
            end = piece.rfind(b"\n") + 1
            for line in piece[:end].splitlines(keepends=True):
                # Before the record is handed over, so that a caller who stops in between does not get it twice.
                self._offsets[generation] = offset = offset + len(line)
                yield line.decode(errors="replace").rstrip("\n")
            if len(piece) < size_bytes:
                return
            size_bytes = self._piece_bytes if end else 2 * size_bytes  # a line longer than a piece
