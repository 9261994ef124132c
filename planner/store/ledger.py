"""The ledger: one segment of records per generation. SHA-256 chains each line to the line before."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.base.json_text import NoJson, json_object
from planner.errors import StoreError
from planner.store.records import (
    NO_HEAD,
    CommitRecord,
    GenerationRecord,
    Record,
    canonical,
    canonical_json,
    chained,
    parse_record,
    require_format,
)
from planner.store.storage import Storage

# A local append takes microseconds. An object store rewrites the object, so records wait there.
_REMOTE_FLUSH_S = 5.0
_PIECE_BYTES, _MAX_LINE_BYTES = 2**24, 2**26
_START, _MIDDLE = '{"head":"', '","record":'
_BODY_AT = len(_START) + len(NO_HEAD) + len(_MIDDLE)


def segment_name(generation: int) -> str:
    """The path of a generation's segment within the run's folder."""
    return f"ledger/{generation:06d}.jsonl"


@dataclass(frozen=True, kw_only=True)
class ChainedRecord:
    """A record, and the value of the hash chain after it."""

    record: Record
    head: str


class LedgerWriter:
    """Appends records to one generation's segment. Only rank 0 has one.

    Raises:
        StoreError: the segment exists already.
    """

    def __init__(
        self,
        storage: Storage,
        header: GenerationRecord,
        previous: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self._name = storage, segment_name(header.generation)
        self._clock = clock
        self._waiting: list[str] = []
        self.is_torn = False
        """an append failed: its last line may be torn or whole, so no record may follow it"""
        self.head = previous
        # Put-if-absent, because two generations in one segment would break the chain.
        if not storage.create(self._name, self._chain(header).encode()):
            raise StoreError(
                f"{storage.url}: cannot begin {self._name}: another generation has written it. Run the command again"
            )
        self._flushed_s = clock()

    def write(self, record: Record) -> None:
        """Add a record. A file system has it at once, an object store within seconds."""
        self._waiting.append(self._chain(record))
        # Not synced: a killed process loses nothing, and what a power cut may take is synced before a manifest or a
        # copy names it.
        if self._storage.is_local or self._clock() - self._flushed_s > _REMOTE_FLUSH_S:
            self.flush()

    def _chain(self, record: Record) -> str:
        line = canonical(record)
        self.head = chained(self.head, line)
        return f'{{"head":"{self.head}","record":{line}}}\n'

    def flush(self) -> None:
        """Write all waiting records.

        Raises:
            StoreError: they could not be written, now or earlier.
        """
        if self.is_torn:
            raise StoreError(f"{self._storage.url}: {self._name} could not be written. Nothing more is added to it")
        if self._waiting:
            # Before the append: if that fails in the midst, or is interrupted, nothing may follow.
            self.is_torn = True
            self._storage.append(self._name, "".join(self._waiting).encode())
            self.is_torn = False
            self._waiting.clear()
            self._flushed_s = self._clock()

    def sync(self) -> None:
        """Make all written records survive a power cut. Any thread may call it.

        Raises:
            StoreError: the store cannot be used.
        """
        self._storage.sync(self._name)


def read_segment(storage: Storage, generation: int, previous: str) -> Iterator[ChainedRecord]:
    """Yield the records of a generation, each checked against the chain that starts at `previous`.

    A torn last line, as a crash leaves it, ends the segment. Every other mismatch raises.

    Raises:
        NewerFormat: another version of planner wrote the segment.
        StoreError: the segment is missing, or the chain breaks. The message names the line.
    """
    name = segment_name(generation)
    head = previous
    for number, line in enumerate(segment_lines(storage, name), 1):
        where = f"{name}:{number}"
        written, body = split_line(line.decode(errors="replace"), where)
        record = parse_record(body, where)
        head = chained(head, body)
        if head != written:
            raise StoreError(f"{where}: the chain breaks here. A line was altered, removed or added")
        yield ChainedRecord(record=record, head=head)


def segment_lines(storage: Storage, name: str) -> Iterator[bytes]:
    """Yield the complete lines of a segment, without their ends. A month of short steps may have gigabytes.

    Raises:
        NewerFormat: another version of planner wrote the segment.
        StoreError: the segment is missing, or has a line that no version of planner writes.
    """
    if not storage.exists(name):
        raise StoreError(f"{storage.url}: {name} is missing")
    offset, begun, is_first = 0, b"", True
    while True:
        piece = storage.read_part(name, offset, _PIECE_BYTES)
        *lines, begun = (begun + piece).split(b"\n")
        if is_first and lines:
            require_segment_format(lines[0], name)
            is_first = False
        yield from lines
        offset += len(piece)
        if len(piece) < _PIECE_BYTES:
            return
        if len(begun) > _MAX_LINE_BYTES:
            raise StoreError(f"{storage.url}: {name} has a line of more than {_MAX_LINE_BYTES} bytes")


def require_segment_format(content: bytes, where: str) -> None:
    """Check the format in a segment's header. A segment without a readable header passes.

    Args:
        content: the first bytes of the segment.
        where: the segment's name, for the message.

    Raises:
        NewerFormat: another version of planner wrote the segment.
    """
    try:
        record = json_object(content.partition(b"\n")[0])["record"]
        is_header = record["kind"] == "generation"
    except (NoJson, KeyError, TypeError):
        return
    if is_header:
        require_format(record.get("format"), "ledger", where)


def recorded_commits(storage: Storage, generation: int) -> dict[str, str]:
    """Return commit name -> digest of its manifest, for the generation's commits in the readable lines of its segment.

    The chain is not checked. The first of two records of one commit counts.

    Raises:
        NewerFormat: another version of planner wrote the segment.
        StoreError: the segment has a line that no version of planner writes.
    """
    name = segment_name(generation)
    if not storage.exists(name):
        return {}
    found: dict[str, str] = {}
    for line in segment_lines(storage, name):
        # Only these lines are parsed, because a segment may have a million others.
        if b'"kind":"commit"' in line:
            of_generation = (commit for commit in commits_among(line) if commit.name.endswith(f"-{generation:06d}"))
            found |= {commit.name: commit.sha256 for commit in of_generation if commit.name not in found}
    return found


def commits_among(content: bytes) -> list[CommitRecord]:
    """The commits in the readable lines of a segment, or of a part of one. The chain is not checked."""
    # Only these lines are parsed, because a segment may have a million others.
    lines = (line for line in content.decode(errors="replace").split("\n") if '"kind":"commit"' in line)
    return [record for line in lines if isinstance(record := readable(line), CommitRecord)]


def header_among(content: bytes) -> GenerationRecord | None:
    """The header at the start of a segment. None if it cannot be read."""
    record = readable(content.decode(errors="replace").partition("\n")[0])
    return record if isinstance(record, GenerationRecord) else None


def records_among(content: bytes) -> list[Record]:
    """The records in the readable lines of a segment, or of a part of one. The chain is not checked."""
    lines = content.decode(errors="replace").split("\n")
    return [record for line in lines if (record := readable(line)) is not None]


def readable(line: str) -> Record | None:
    """The record of a line. None if it cannot be read. The chain is not checked."""
    try:
        return parse_record(_parts_of(line, "ledger")[1], "ledger")
    except StoreError:
        return None


def split_line(line: str, where: str) -> tuple[str, str]:
    """Return a line's head and the text of its record, exactly as it was chained.

    Raises:
        StoreError: `LedgerWriter` did not write this line, or the line was altered or torn.
    """
    head, body = _parts_of(line, where)
    if not _is_canonical(body):
        raise _not_a_line(where)
    return head, body


def _parts_of(line: str, where: str) -> tuple[str, str]:
    """A line's head and body. The body may be any text."""
    # By position, not as JSON: the chain is over the exact text of the record.
    head, body = line[len(_START) : len(_START) + len(NO_HEAD)], line[_BODY_AT:-1]
    if line != f"{_START}{head}{_MIDDLE}{body}}}":
        raise _not_a_line(where)
    return head, body


def _not_a_line(where: str) -> StoreError:
    return StoreError(f"{where}: not a ledger line. It was altered or torn")


def _is_canonical(text: str) -> bool:
    """Whether it is JSON in the form that `canonical` writes: with another form, two readers may see two records."""
    try:
        return canonical_json(json.loads(text)) == text
    except (ValueError, RecursionError):
        return False
