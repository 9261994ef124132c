"""Reads the committed lineage of a run, from the newest commit back to the start, along the hash chain.

Each mismatch is a finding, one sentence each, and reading continues as far as possible. Only the run's folder is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.errors import NewerFormat, StoreError
from planner.store.ledger import ChainedRecord, read_segment, recorded_commits, segment_name
from planner.store.newest import newest_of
from planner.store.records import NO_HEAD, EvalRecord, GenerationRecord, Manifest, Record, StepRecord
from planner.store.run_folder import RunFolder, commit_of


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One generation's records, up to the commit that the next generation resumed from."""

    header: GenerationRecord
    end_step: int
    """half open: the step of the commit that ends it"""
    steps: tuple[StepRecord, ...]
    evals: tuple[EvalRecord, ...]
    tail_steps: int
    """steps after the commit"""
    findings: tuple[str, ...]
    """mismatches between its records, its header and the commits at its two ends"""


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
            parent = run.manifest(end.parent) if end.parent else None
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
        run.check_files(newest.manifest, newest.manifest.files)
    except StoreError as error:
        findings.append(str(error))
    return newest.manifest, findings


# -- one segment


def _segment(run: RunFolder, end: Manifest, parent: Manifest | None) -> Segment:
    """Read a generation's segment from its start to the commit `end`. `parent` is the commit that it resumed from.

    Raises:
        StoreError: the segment is missing, or the chain breaks before the commit.
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
    """The records up to the chain's head that a commit names.

    Raises:
        StoreError: the chain breaks, or does not reach that head.
    """
    records: list[Record] = []
    for link in links:
        records.append(link.record)
        if link.head == end.ledger_head:
            return records
    raise StoreError(f"{where}: it does not reach the head that commit {end.name} names. Lines are missing")


def _check_beginning(run: RunFolder, header: GenerationRecord, parent: Manifest | None, where: str) -> list[str]:
    """Compare a header with the commit that it resumed from, and return the findings.

    Raises:
        StoreError: that commit's manifest is gone.
    """
    findings = []
    if parent and header.parent_sha256 != run.manifest_digest(parent.name):
        findings.append(
            f"commit {parent.name}: its manifest is not the one that generation {header.generation} went on from"
        )
    start = (parent.name, parent.step, parent.cursor) if parent else ("", 0, 0)
    if (header.parent, header.step, header.cursor) != start:
        findings.append(f"{where}: it begins at step {header.step}, not where commit {start[0] or 'none'} ended")
    return findings


def _check_end(header: GenerationRecord, steps: Sequence[StepRecord], end: Manifest) -> list[str]:
    """Compare a commit with the header and the last step of its segment, and return the findings."""
    findings = []
    promised = (header.world_size, header.plan_digest, header.total_steps, header.identity, header.facts, header.run_id)
    if (end.world_size, end.plan_digest, end.total_steps, end.identity, end.facts, end.run_id) != promised:
        findings.append(f"commit {end.name}: its plan, length, machine or run is not what its ledger's header names")
    done = (steps[-1].step + 1, steps[-1].cursor) if steps else (header.step, header.cursor)
    if (end.step, end.cursor) != done:
        findings.append(
            f"commit {end.name}: it says step {end.step} and sample {end.cursor}, "
            f"and its ledger step {done[0]} and sample {done[1]}"
        )
    return findings


def _tail(links: Iterator[ChainedRecord], where: str) -> tuple[list[Record], list[str]]:
    """The readable records after the commit, and a finding if the rest cannot be read."""
    tail: list[Record] = []
    try:
        tail.extend(link.record for link in links)
    except StoreError as error:
        return tail, [f"{where}, after its last commit: {error}"]
    return tail, []


# -- all segments together


def check_identity(segments: Sequence[Segment]) -> list[str]:
    """Find changes of the identity that no header records as accepted by the user."""
    return [
        f"generation {after.generation}: another {field} than before, and nobody accepted it"
        for before, after in pairwise(segment.header for segment in segments)
        for field in before.identity.differences(after.identity)
        if not any(change.startswith(f"{field}: ") for change in after.changed)
    ]


def check_records(run: RunFolder, known: Sequence[str]) -> list[str]:
    """Check that every recorded commit has its manifest, and that every commit is recorded. Return the findings.

    Manifests are never removed. The last commit of a generation may lack a record, because its worker may have died
    before writing it. Findings in `known` are not repeated.
    """
    findings = []
    recorded = {
        name: digest for number in run.segments() for name, digest in recorded_commits(run.storage, number).items()
    }
    for name, digest in recorded.items():
        try:
            run.manifest(name)
        except StoreError as error:
            if str(error) not in known:
                findings.append(f"commit {name} is on record, and its manifest is no good: {error}")
            continue
        if run.manifest_digest(name) != digest:
            findings.append(f"commit {name}: its manifest is not the one that the ledger records")
    findings += [
        f"commit {name}: the ledger has no record of it, and its generation went on"
        for name, after in pairwise(run.commits())
        if name not in recorded and commit_of(name)[1] == commit_of(after)[1]
    ]
    return findings


def count_discarded(run: RunFolder, segments: Sequence[Segment]) -> tuple[dict[int, int], int]:
    """Return generation -> its steps that were computed again, and the newest generation's uncommitted steps."""
    tails = {segment.header.generation: segment.tail_steps for segment in segments}
    numbers = {*run.generations(), *run.segments()}
    counts = {n: tails[n] if n in tails else _count_steps(run, n) for n in numbers}
    uncommitted = counts.pop(max(counts), 0) if counts else 0
    return counts, uncommitted


def _count_steps(run: RunFolder, generation: int) -> int:
    """The number of steps in a segment outside the lineage. The segment may be torn or missing."""
    return run.storage.read_from(segment_name(generation), 0).count(b'"kind":"step"')
