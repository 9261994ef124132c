"""Checks all of a run's generations together, also those outside the lineage, and counts steps that do not count."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from planner.errors import NewerFormat, StoreError
from planner.provenance.identity import DEVICE, MODEL, MODEL_FILES
from planner.provenance.lineage import Lineage, Segment, check_discarded, header_of, replaced_text
from planner.provenance.manifests import Manifests
from planner.store.commit_names import named
from planner.store.ledger import recorded_commits, segment_lines, segment_name
from planner.store.records import GenerationRecord
from planner.store.run_folder import RunFolder, commit_of


def check_identity(segments: Sequence[Segment]) -> list[str]:
    """Find changes of the identity that no header records as accepted by the user, and accepted ones that are none."""
    headers = [segment.header for segment in segments]
    unaccepted = [
        f"generation {after.generation}: another {field} than before, and nobody accepted it"
        for before, after in pairwise(headers)
        for field in before.identity.differences(after.identity)
        if field not in _accepted(after)
    ]
    # If older segments cannot be read, nothing is known before the first one.
    pairs = [*((header, header) for header in headers[:1] if not header.parent), *pairwise(headers)]
    return unaccepted + [finding for pair in pairs for finding in _unchanged(*pair)]


def _unchanged(before: GenerationRecord, after: GenerationRecord) -> list[str]:
    """Changes that a header records as accepted, and that are not between it and the generation before."""
    old, new = _acceptable(before), _acceptable(after)
    return [
        f"generation {after.generation}: it records an accepted change of {change.field[:_MOST_CHARS]} that is none"
        for change in after.accepted
        if change.before == change.now or (change.before, change.now) != (old.get(change.field), new.get(change.field))
    ]


def _acceptable(header: GenerationRecord) -> dict[str, str]:
    """What makes a run the same run, as accepted changes have it: name -> value as text."""
    facts = {DEVICE: header.facts.get(DEVICE, ""), MODEL_FILES: header.facts.get(MODEL, "")}
    return {name: str(value) for name, value in {**header.identity.model_dump(), **facts}.items()}


def check_formats(run: RunFolder) -> list[str]:
    """Find ledgers of an older format than one before them: no version of planner goes on from a newer format."""
    headers = filter(None, (header_of(run, number) for number in run.segments()))
    return [
        f"generation {after.generation}: its ledger has format {after.format}, and that of generation "
        f"{before.generation} has format {before.format} already"
        for before, after in pairwise(headers)
        if after.format < before.format
    ]


def _accepted(header: GenerationRecord) -> set[str]:
    """The fields of the identity whose change the user accepted."""
    if header.format >= _ACCEPTED_AS_FIELDS:
        return {change.field for change in header.accepted}
    # Earlier formats have texts alone, such as `seed: accepted by name`.
    return {change.partition(": ")[0] for change in header.changed}


# The first format of the ledger whose headers have `accepted`.
_ACCEPTED_AS_FIELDS = 3
# Of a field's name in a finding. Whoever wrote the folder chose it.
_MOST_CHARS = 40


def check_records(run: RunFolder, lineage: Lineage, known: Sequence[str]) -> list[str]:
    """Check that what the ledger names has its manifest, and that every commit is recorded. Return the findings.

    Manifests are never removed. The last commit of a generation may lack a record, because its worker may have died
    before writing it. Findings in `known` are not repeated.
    """
    manifests, findings = lineage.manifests, []
    recorded: dict[str, str] = {}
    for number in run.segments():
        try:
            recorded |= recorded_commits(run.storage, number)
        except NewerFormat:
            raise
        except StoreError as error:
            findings.append(str(error))
    for name, digest in recorded.items():
        try:
            manifests.commit(name)
        except StoreError as error:
            if str(error) not in known:
                findings.append(f"commit {name} is on record, and its manifest is no good: {error}")
            continue
        if run.manifest_digest(name) != digest:
            findings.append(f"commit {name}: its manifest is not the one that the ledger records")
    findings += [
        f"commit {name}: the ledger has no record of it, and its generation went on"
        for name, after in pairwise(manifests.commits)
        if name not in recorded and commit_of(name)[1] == commit_of(after)[1]
    ]
    return findings + [finding for finding in _check_held(run, lineage.manifests) if finding not in known]


def _check_held(run: RunFolder, manifests: Manifests) -> list[str]:
    """Check that every held step that a header names has the manifest of that digest. Return the findings."""
    findings = []
    for header in filter(None, (header_of(run, number) for number in run.segments())):
        if not header.parent_is_held:
            continue
        try:
            parent = manifests.parent_of(header.generation, header.parent, is_held=True)
        except StoreError as error:
            findings.append(str(error))
            continue
        if run.held_digest(parent.name) != header.parent_sha256:
            findings.append(replaced_text(parent, header.generation))
    return findings


def check_outside(run: RunFolder, lineage: Lineage, known: Sequence[str]) -> list[str]:
    """Check all generations that the lineage does not go through. Findings in `known` are not repeated."""
    inside = {segment.header.generation for segment in lineage.segments}
    outside = (number for number in run.segments() if number not in inside)
    found = (finding for number in outside for finding in check_discarded(run, number, lineage.manifests))
    return [finding for finding in found if finding not in known]


def count_discarded(run: RunFolder, segments: Sequence[Segment]) -> tuple[dict[int, int], int]:
    """Return generation -> its steps that were computed again, and the steps that no commit covers yet.

    The latter are those of the newest generation, and those before it that it goes on from in memory.
    """
    tails = {segment.header.generation: segment.tail_steps for segment in segments}
    numbers = {*run.generations(), *run.segments()}
    counts = {n: tails[n] if n in tails else _count_steps(run, n) for n in numbers}
    uncommitted = counts.pop(max(counts), 0) if counts else 0
    for generation, steps in _kept_in_memory(run, segments).items():
        counts[generation] -= steps
        uncommitted += steps
    return counts, uncommitted


def _kept_in_memory(run: RunFolder, segments: Sequence[Segment]) -> dict[int, int]:
    """Return generation -> its steps after the newest commit that the newest generation goes on from in memory."""
    committed = {segment.header.generation: segment.end_step for segment in segments}
    kept = dict[int, int]()
    header = header_of(run, max({*run.generations(), *run.segments()}, default=0))
    while header is not None and header.parent_is_held and named([header.parent]):
        end, generation = commit_of(header.parent)
        header = header_of(run, generation)
        if header is None or generation in kept:
            break
        kept[generation] = max(end - committed.get(generation, header.step), 0)
    return kept


def _count_steps(run: RunFolder, generation: int) -> int:
    """The number of steps in a segment outside the lineage. The segment may be torn or missing."""
    name = segment_name(generation)
    if not run.storage.exists(name):
        return 0
    steps = 0
    with suppress(StoreError):  # what is wrong with it was found above
        for line in segment_lines(run.storage, name):
            # Not parsed: a segment may have millions of lines.
            steps += b'"kind":"step"' in line
    return steps
