"""One segment of records per generation, each line chained to the one before by SHA-256."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.errors import StoreError
from planner.store.records import (
    NO_HEAD,
    CommitRecord,
    GenerationRecord,
    Record,
    canonical,
    chained,
    parse_record,
    require_format,
)
from planner.store.storage import MAX_BLOB_BYTES, Storage

# A local append costs microseconds; an object store rewrites the object, so there records wait.
_REMOTE_FLUSH_S = 5.0


def segment_name(generation: int) -> str:
    """Where a generation's records lie."""
    return f"ledger/{generation:06d}.jsonl"


@dataclass(frozen=True, kw_only=True)
class ChainedRecord:
    """A record and the chain's value after it."""

    record: Record
    head: str


class LedgerWriter:
    """Appends records to one generation's segment. One process of a generation has one.

    Raises:
        StoreError: the segment is there already.
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
        """an append did not return: its last line may be half there, or all there, so nothing may stand behind it"""
        self.head = previous
        # Put if absent: two generations in one segment would break the chain of both.
        if not storage.create(self._name, self._chain(header).encode()):
            raise StoreError(
                f"{storage.url}: cannot begin {self._name}: another generation has written it, "
                "and nothing is added to it; run again"
            )
        self._flushed_s = clock()

    def write(self, record: Record) -> None:
        """Add a record; it reaches the store at once on a file system, within seconds elsewhere."""
        self._waiting.append(self._chain(record))
        if self._storage.is_local or self._clock() - self._flushed_s > _REMOTE_FLUSH_S:
            self.flush()

    def _chain(self, record: Record) -> str:
        line = canonical(record)
        self.head = chained(self.head, line)
        return f'{{"head":"{self.head}","record":{line}}}\n'

    def flush(self, *, durable: bool = False) -> None:
        """Hand all records to the store; `durable`: they survive a power cut when this returns.

        Raises:
            StoreError: the store did not take them, now or earlier.
        """
        if self.is_torn:
            raise StoreError(f"{self._storage.url}: {self._name} could not be written; nothing more is added to it")
        if self._waiting:
            self.is_torn = True
            self._storage.append(self._name, "".join(self._waiting).encode())
            self.is_torn = False
            self._waiting.clear()
            self._flushed_s = self._clock()
        if durable:
            self._storage.sync(self._name)


def read_segment(storage: Storage, generation: int, previous: str) -> Iterator[ChainedRecord]:
    """The records of a generation, each checked against the chain that began at `previous`.

    A torn last line, as a crash leaves it, ends the segment; anything else that does not fit raises.

    Raises:
        NewerFormat: another version of planner wrote the segment.
        StoreError: there is no such segment, or the chain breaks; the line is named.
    """
    name = segment_name(generation)
    head = previous
    content = storage.read(name, MAX_BLOB_BYTES)
    require_segment_format(content, name)
    lines = content.decode(errors="replace").split("\n")
    for number, line in enumerate(lines[:-1], 1):
        where = f"{name}:{number}"
        written, body = split_line(line, where)
        record = parse_record(body, where)
        head = chained(head, body)
        if head != written:
            raise StoreError(f"{where}: the chain breaks here; a line was altered, removed or added")
        yield ChainedRecord(record=record, head=head)


def require_segment_format(content: bytes, where: str) -> None:
    """Check the format in a segment's header. A segment without a readable header passes.

    Args:
        content: how the segment begins.
        where: its name, for the message.

    Raises:
        NewerFormat: another version of planner wrote it.
    """
    try:
        record = json.loads(content.partition(b"\n")[0])["record"]
        is_header = record["kind"] == "generation"
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    if is_header:
        require_format(record.get("format"), "ledger", where)


def recorded_commits(storage: Storage, generation: int) -> dict[str, str]:
    """Name -> digest of the manifest, for all commits in the readable lines of a segment.

    The chain is not checked. Of two records of one commit the first counts.

    Raises:
        NewerFormat: another version of planner wrote the segment.
        StoreError: it is larger than any segment.
    """
    name = segment_name(generation)
    if not storage.exists(name):
        return {}
    content = storage.read(name, MAX_BLOB_BYTES)
    require_segment_format(content, name)
    found: dict[str, str] = {}
    for commit in commits_among(content):
        found.setdefault(commit.name, commit.sha256)
    return found


def commits_among(content: bytes) -> list[CommitRecord]:
    """The commits in a segment or in a part of one, as far as lines can be read; the chain is not checked."""
    # Only these lines are parsed: a segment may have a million others.
    lines = (line for line in content.decode(errors="replace").split("\n") if '"kind":"commit"' in line)
    return [record for line in lines if isinstance(record := _readable(line), CommitRecord)]


def header_among(content: bytes) -> GenerationRecord | None:
    """The record that a segment begins with; none if it cannot be read."""
    record = _readable(content.decode(errors="replace").partition("\n")[0])
    return record if isinstance(record, GenerationRecord) else None


def records_among(content: bytes) -> list[Record]:
    """All records in a segment or in a part of one, as far as lines can be read; the chain is not checked."""
    lines = content.decode(errors="replace").split("\n")
    return [record for line in lines if (record := _readable(line)) is not None]


def _readable(line: str) -> Record | None:
    try:
        return parse_record(split_line(line, "ledger")[1], "ledger")
    except StoreError:
        return None


def split_line(line: str, where: str) -> tuple[str, str]:
    """A line's head and its record as the very text that was chained.

    Raises:
        StoreError: the line is not of the form that `LedgerWriter` writes.
    """
    start, middle = '{"head":"', '","record":'
    head, body = (
        line[len(start) : len(start) + len(NO_HEAD)],
        line[len(start) + len(NO_HEAD) + len(middle) : -1],
    )
    if line != f"{start}{head}{middle}{body}}}" or not _is_json(body):
        raise StoreError(f"{where}: not a ledger line; it was altered or torn")
    return head, body


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
