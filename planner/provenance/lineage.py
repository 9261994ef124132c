"""Reads the committed lineage of a run, from the newest commit back to the start, along the hash chain.

A generation begins at a commit, or at a step that was only held in memory. Either has a sealed manifest.

Each mismatch is a finding, one sentence each, and reading continues as far as possible. Only the run's folder is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.errors import NewerFormat, StoreError
from planner.store.ledger import ChainedRecord, header_among, read_segment, segment_name
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
    """mismatches between its records, its header and the manifests at its two ends"""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The generations that led to the newest commit."""

    newest: Manifest
    """of the newest commit whose manifest can be read"""
    segments: tuple[Segment, ...]
    """oldest first. If a segment cannot be read, it and all older ones are missing"""
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
    newest, findings = _newest(run)
    segments: list[Segment] = []
    end: Manifest | None = newest
    while end is not None:
        try:
            parent = _parent(run, end)
            segments.append(_segment(run, end, parent))
        except NewerFormat:
            raise
        except StoreError as error:
            findings.append(str(error))
            break
        findings.extend(segments[-1].findings)
        end = parent
    return Lineage(newest=newest, segments=tuple(segments[::-1]), findings=tuple(findings))


def whole_lineage(run: RunFolder) -> Lineage:
    """Read the lineage of the newest commit, and require that it has no findings.

    Raises:
        StoreError: there is no commit, or there are findings. The message is the first finding.
    """
    lineage = read_lineage(run)
    if lineage.findings:
        raise StoreError(lineage.findings[0])
    return lineage


def _newest(run: RunFolder) -> tuple[Manifest, list[str]]:
    """The newest commit whose manifest can be read, with findings about newer commits and about its files.

    Raises:
        NewerFormat: another version of planner wrote a newer commit.
        StoreError: there is no such commit.
    """
    newest = newest_of(reversed(run.commits()), run.manifest)
    findings = [str(error) for _, error in newest.passed_over]
    if newest.manifest is None:
        if lost := run.lost_commits():
            raise StoreError(f"{run.storage.url}: the ledger records {len(lost)} commits, and no manifest can be read")
        reason = f" ({findings[0]})" if findings else ""
        raise StoreError(f"{run.storage.url}: nothing was committed yet, so there is nothing to audit{reason}")
    try:
        run.check_files(newest.manifest.folder, newest.manifest.files)
    except StoreError as error:
        findings.append(str(error))
    return newest.manifest, findings


# -- one segment


def _parent(run: RunFolder, end: Manifest) -> Manifest | None:
    """The manifest of the step that the generation of `end` resumed from. None if it began the run.

    Raises:
        StoreError: it is gone or altered.
    """
    if not end.parent:
        return None
    header = header_of(run, end.generation)
    if header is not None and header.parent_is_held:
        return held_parent(run, header.generation, end.parent)
    return run.described(end.parent)


def header_of(run: RunFolder, generation: int) -> GenerationRecord | None:
    """A generation's header, which is not checked against the chain. None if it cannot be read."""
    name = segment_name(generation)
    return header_among(run.storage.read_first(name, _HEADER_BYTES)) if run.storage.exists(name) else None


def held_parent(run: RunFolder, generation: int, name: str) -> Manifest:
    """The manifest of the held step that a generation resumed from.

    Raises:
        StoreError: it is gone or altered.
    """
    try:
        return run.held(name)
    except NewerFormat:
        raise
    except StoreError as error:
        raise StoreError(
            f"generation {generation} resumed from memory at held step {name}, and its manifest is no good: {error}"
        ) from error


def _segment(run: RunFolder, end: Manifest, parent: Manifest | None) -> Segment:
    """Read a generation's segment from its start to the step `end`. `parent` is the step that it resumed from.

    Raises:
        StoreError: the segment is missing, or the chain breaks before that step.
    """
    where = f"ledger of generation {end.generation}"
    links = read_segment(run.storage, end.generation, parent.ledger_head if parent else NO_HEAD)
    records = _records_until(end, links, where)
    header = records[0]
    if not isinstance(header, GenerationRecord):
        raise StoreError(f"{where}: it does not begin with a header")
    beginning = _check_beginning(run, header, parent, where)
    steps = tuple(record for record in records if isinstance(record, StepRecord))
    tail, torn = _tail(links, where)
    return Segment(
        header=header,
        end_step=end.step,
        steps=steps,
        # The evaluation that belongs to a commit is written after it.
        evals=tuple(r for r in (*records, *tail) if isinstance(r, EvalRecord) and r.step <= end.step),
        tail_steps=sum(isinstance(record, StepRecord) for record in tail),
        findings=(*beginning, *_check_end(header, steps, end), *torn),
    )


def _records_until(end: Manifest, links: Iterator[ChainedRecord], where: str) -> list[Record]:
    """The records up to the chain's head that a manifest names.

    Raises:
        StoreError: the chain breaks, or does not reach that head.
    """
    records: list[Record] = []
    for link in links:
        records.append(link.record)
        if link.head == end.ledger_head:
            return records
    raise StoreError(f"{where}: it does not reach the head that {end.title} names. Lines are missing")


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


def _check_end(header: GenerationRecord, steps: Sequence[StepRecord], end: Manifest) -> list[str]:
    """Compare a manifest with the header and the last step of its segment, and return the findings."""
    findings = []
    promised = (header.world_size, header.plan_digest, header.total_steps, header.identity, header.facts, header.run_id)
    if (end.world_size, end.plan_digest, end.total_steps, end.identity, end.facts, end.run_id) != promised:
        findings.append(f"{end.title}: its plan, length, machine or run is not what its ledger's header names")
    if end.job_digest != header.job_digest:
        findings.append(f"{end.title}: its job is not the one that its ledger's header names")
    done = (steps[-1].step + 1, steps[-1].cursor) if steps else (header.step, header.cursor)
    if (end.step, end.cursor) != done:
        findings.append(
            f"{end.title}: it says step {end.step} and sample {end.cursor}, "
            f"and its ledger step {done[0]} and sample {done[1]}"
        )
    return findings


def _tail(links: Iterator[ChainedRecord], where: str) -> tuple[list[Record], list[str]]:
    """The readable records after the end, and a finding if the rest cannot be read."""
    tail: list[Record] = []
    try:
        tail.extend(link.record for link in links)
    except StoreError as error:
        return tail, [f"{where}, after its last commit: {error}"]
    return tail, []
