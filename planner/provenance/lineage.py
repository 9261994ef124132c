"""Reads the committed lineage of a run, from the newest commit back to the start, along the hash chain.

A generation begins at a commit, or at a step that was only held in memory. Either has a sealed manifest.

Each mismatch is a finding, one sentence each, and reading continues as far as possible. Only the run's folder is read.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from planner.errors import NewerFormat, StoreError
from planner.provenance.manifests import Manifests, read_manifests
from planner.provenance.record_numbers import RecordNumbers
from planner.store.ledger import ChainedRecord, header_among, read_segment, segment_lines, segment_name
from planner.store.newest import newest_of
from planner.store.records import NO_HEAD, EvalRecord, GenerationRecord, Manifest, Record, StepRecord
from planner.store.run_folder import RunFolder

# A header has about 2 KB, and its facts and accepted changes may be long.
_HEADER_BYTES = 2**18


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One generation's records, up to the step that the next generation resumed from."""

    header: GenerationRecord
    end_step: int
    """half open: the step of the commit, or of the held step, that ends it"""
    steps: tuple[StepRecord, ...]
    evals: tuple[EvalRecord, ...]
    tail_steps: int
    """steps after that"""
    findings: tuple[str, ...]
    """mismatches between its records, its header and its manifests"""
    miscounts: tuple[str, ...]
    """steps that computed more or fewer samples than a global batch. Its records may be sound"""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The generations that led to the newest commit."""

    newest: Manifest
    """of the newest commit whose manifest can be read"""
    has_files: bool
    """whether the files of that commit are those of its manifest"""
    segments: tuple[Segment, ...]
    """oldest first. If a segment cannot be read, it and all older ones are missing"""
    manifests: Manifests
    """all of the run, also those outside the lineage"""
    findings: tuple[str, ...]

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """Every committed step, oldest first."""
        return tuple(step for segment in self.segments for step in segment.steps)

    @property
    def evals(self) -> tuple[EvalRecord, ...]:
        """Every evaluation of the lineage, oldest first."""
        return tuple(each for segment in self.segments for each in segment.evals)


def read_lineage(run: RunFolder) -> Lineage:
    """Read the lineage of the newest commit, with mismatches as findings.

    Raises:
        NewerFormat: another version of planner wrote a part of it.
        StoreError: there is no readable commit.
    """
    manifests = read_manifests(run)
    newest, findings = _newest(run, manifests)
    wrong_files = _check_files(run, newest)
    if wrong_files and not set(run.commits()) <= set(manifests.commits):
        return read_lineage(run)  # the run goes on, and has removed the files of old commits meanwhile
    findings += wrong_files
    segments: list[Segment] = []
    end: Manifest | None = newest
    while end is not None:
        try:
            parent = _parent(run, end, manifests)
            segments.append(_segment(run, end, parent, manifests))
        except NewerFormat:
            raise
        except StoreError as error:
            findings.append(str(error))
            break
        findings.extend(segments[-1].findings)
        end = parent
    return Lineage(
        newest=newest,
        has_files=not wrong_files,
        segments=tuple(segments[::-1]),
        manifests=manifests,
        findings=tuple(findings),
    )


def whole_lineage(run: RunFolder) -> Lineage:
    """Read the lineage of the newest commit, and require that it has no findings.

    Raises:
        StoreError: there is no commit, or there are findings. The message is the first finding.
    """
    lineage = read_lineage(run)
    if lineage.findings:
        raise StoreError(lineage.findings[0])
    return lineage


def _newest(run: RunFolder, manifests: Manifests) -> tuple[Manifest, list[str]]:
    """The newest commit whose manifest can be read, with findings about newer commits.

    Raises:
        NewerFormat: another version of planner wrote a newer commit.
        StoreError: there is no such commit.
    """
    newest = newest_of(reversed([*manifests.commits]), manifests.commit)
    findings = [str(error) for _, error in newest.passed_over]
    if newest.manifest is None:
        if lost := run.lost_commits():
            raise StoreError(f"{run.storage.url}: the ledger records {len(lost)} commits, and no manifest can be read")
        reason = f" ({findings[0]})" if findings else ""
        raise StoreError(f"{run.storage.url}: nothing was committed yet, so there is nothing to audit{reason}")
    return run.manifest(newest.manifest.name), findings  # with its files


def _check_files(run: RunFolder, newest: Manifest) -> list[str]:
    """What is wrong with the files of a commit: the first one that is missing, torn or altered."""
    try:
        run.check_files(newest.folder, newest.files)
    except StoreError as error:
        return [str(error)]
    return []


# -- one segment


def _parent(run: RunFolder, end: Manifest, manifests: Manifests) -> Manifest | None:
    """The manifest of the step that the generation of `end` resumed from. None if it began the run.

    Raises:
        StoreError: it is gone or altered.
    """
    if not end.parent:
        return None
    header = header_of(run, end.generation)
    is_held = header is not None and header.parent_is_held
    return manifests.parent_of(end.generation, end.parent, is_held=is_held)


def header_of(run: RunFolder, generation: int) -> GenerationRecord | None:
    """A generation's header, which is not checked against the chain. None if it cannot be read."""
    line = _first_line(run, generation)
    return None if line is None else header_among(line)


def _first_line(run: RunFolder, generation: int) -> bytes | None:
    """The first line of a generation's segment. None if the segment is missing, or the line is torn."""
    name = segment_name(generation)
    if not run.storage.exists(name):
        return None
    begin = run.storage.read_first(name, _HEADER_BYTES)
    if b"\n" in begin or len(begin) < _HEADER_BYTES:
        return begin.partition(b"\n")[0] if b"\n" in begin else None
    return next(segment_lines(run.storage, name), None)


def _segment(run: RunFolder, end: Manifest, parent: Manifest | None, manifests: Manifests) -> Segment:
    """Read a generation's segment from its start to the step `end`. `parent` is the step that it resumed from.

    Raises:
        StoreError: the segment is missing, or the chain breaks before that step.
    """
    where = f"ledger of generation {end.generation}"
    links = read_segment(run.storage, end.generation, parent.ledger_head if parent else NO_HEAD)
    first = next(links, None)
    if first is None:
        raise _unreached(where, end)
    header = _header(first, end.generation, where)
    described = manifests.of_generation(end.generation)
    numbers = RecordNumbers(header, described)
    records = _records_until(end, chain([first], links), numbers, where)
    steps = tuple(record for record in records if isinstance(record, StepRecord))
    tail, torn = _tail(links, numbers, where)
    return Segment(
        header=header,
        end_step=end.step,
        steps=steps,
        # The evaluation that belongs to a commit is written after it.
        evals=tuple(r for r in (*records, *tail) if isinstance(r, EvalRecord) and r.step <= end.step),
        tail_steps=sum(isinstance(record, StepRecord) for record in tail),
        findings=(
            *_check_beginning(run, header, parent, where),
            *numbers.findings,
            *(finding for each in described for finding in _check_promised(header, each)),
            *torn,
        ),
        miscounts=tuple(numbers.miscounts),
    )


def check_discarded(run: RunFolder, generation: int, manifests: Manifests) -> list[str]:
    """Check a generation outside the lineage: its beginning, its chain, and the numbers of its records.

    A generation whose driver died early has no header, or a torn one.
    """
    where = f"ledger of generation {generation}"
    if (line := _first_line(run, generation)) is None:
        return []
    if (header := header_among(line)) is None:
        return [f"{where}: it does not begin with a header"]
    described = manifests.of_generation(generation)
    numbers = RecordNumbers(header, described)
    try:
        is_held = header.parent_is_held
        parent = manifests.parent_of(generation, header.parent, is_held=is_held) if header.parent else None
        beginning = _check_beginning(run, header, parent, where)
        links = read_segment(run.storage, generation, parent.ledger_head if parent else NO_HEAD)
        first = next(links, None)
        if first is None:  # somebody cuts it at this moment
            return []
        _header(first, generation, where)
        for link in chain([first], links):
            numbers.take(link)
    except StoreError as error:
        return [*numbers.findings, str(error)]
    numbers.close()
    promised = (finding for each in described for finding in _check_promised(header, each))
    return [*beginning, *numbers.findings, *numbers.miscounts, *promised]


def _header(first: ChainedRecord, generation: int, where: str) -> GenerationRecord:
    """The header in a segment's first record.

    Raises:
        StoreError: it is none, or one of another generation.
    """
    header = first.record
    if not isinstance(header, GenerationRecord):
        raise StoreError(f"{where}: it does not begin with a header")
    if header.generation != generation:
        raise StoreError(f"{where}: its header is that of generation {header.generation}")
    return header


def _records_until(end: Manifest, links: Iterable[ChainedRecord], numbers: RecordNumbers, where: str) -> list[Record]:
    """The records up to the chain's head that a manifest names. `numbers` checks each.

    Raises:
        StoreError: the chain breaks, or does not reach that head.
    """
    records: list[Record] = []
    for link in links:
        records.append(link.record)
        numbers.take(link)
        if link.head == end.ledger_head:
            return records
    raise _unreached(where, end)


def _unreached(where: str, end: Manifest) -> StoreError:
    return StoreError(f"{where}: it does not reach the head that {end.title} names. Lines are missing")


def _check_beginning(run: RunFolder, header: GenerationRecord, parent: Manifest | None, where: str) -> list[str]:
    """Compare a header with the step that it resumed from, and return the findings.

    Raises:
        StoreError: that step's manifest is gone.
    """
    findings = []
    if parent and header.parent_sha256 != _digest(run, parent):
        findings.append(replaced_text(parent, header.generation))
    if header.parent_is_held != (parent is not None and parent.is_held):
        said, found = ("held", "durable") if header.parent_is_held else ("durable", "held")
        findings.append(
            f"{where}: it says that it resumed from a {said} step, and its parent is not {said} but {found}"
        )
    start = (parent.name, parent.step, parent.cursor) if parent else ("", 0, 0)
    if (header.parent, header.step, header.cursor) != start:
        ended = parent.title if parent else "commit none"
        findings.append(f"{where}: it begins at step {header.step}, not where {ended} ended")
    return findings


def _digest(run: RunFolder, manifest: Manifest) -> str:
    return run.held_digest(manifest.name) if manifest.is_held else run.manifest_digest(manifest.name)


def replaced_text(parent: Manifest, generation: int) -> str:
    """The finding about a parent whose digest is not the one in the header of its generation."""
    return f"{parent.title}: its manifest is not the one that generation {generation} went on from"


def _check_promised(header: GenerationRecord, manifest: Manifest) -> list[str]:
    """Compare a manifest with the header of its generation, and return the findings."""
    findings = []
    shared = ("world_size", "plan_digest", "total_steps", "identity", "facts", "run_id", "parent")
    if any(getattr(manifest, field) != getattr(header, field) for field in shared):
        findings.append(f"{manifest.title}: its plan, length, machine or run is not what its ledger's header names")
    if manifest.job_digest != header.job_digest:
        findings.append(f"{manifest.title}: its job is not the one that its ledger's header names")
    return findings


def _tail(links: Iterator[ChainedRecord], numbers: RecordNumbers, where: str) -> tuple[list[Record], list[str]]:
    """The readable records after the end, and a finding if the rest cannot be read. `numbers` checks each."""
    tail: list[Record] = []
    try:
        for link in links:
            tail.append(link.record)
            numbers.take(link)
    except StoreError as error:
        return tail, [f"{where}, after its last commit: {error}"]
    numbers.close()
    return tail, []
