"""Reads how a run stands from the ends of its files, so a million steps take no longer than a few.

Nothing is verified: tensors are not read, and the chain is not checked. The audit does that.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from planner.errors import NewerFormat, StoreError
from planner.events.resuming import CommitNotUsed
from planner.job import Job
from planner.store.code_failure import CodeFailure, read_failure
from planner.store.lease import driver_state, newest_lease
from planner.store.lease_record import FoundLease, LeaseRecord
from planner.store.ledger import header_among, records_among, require_segment_format, segment_name
from planner.store.newest import Newest, newest_commit
from planner.store.records import CommitRecord, EventRecord, GenerationRecord, Manifest, Record
from planner.store.run_folder import RunFolder, commit_of
from planner.store.run_status import RunStatus, read_status
from planner.store.storage import Storage

# A header has about 2 KB, a step 350 bytes: the tail holds about 180 steps.
_HEAD_BYTES, _TAIL_BYTES = 2**14, 2**16
MOST_GENERATIONS = 32
"""how many of the newest generations a detailed survey reads, since a run on spot nodes may have a thousand"""
# An object store answers in about 30 ms, and a run takes a dozen requests.
_AT_ONCE = 16
_OF_A_RUN = frozenset({"run.json", "drivers", "generations", "held", "ledger", "manifests"})


@dataclass(frozen=True, kw_only=True)
class SegmentEnds:
    """The start and the end of one generation's segment."""

    generation: int
    header: GenerationRecord | None
    """none if it cannot be read"""
    records: tuple[Record, ...]
    """the header, events as far as the first records were read, and the last records"""
    committed_step: int
    """of its last commit, by the names of manifests, or -1 if it has none"""
    held_step: int = -1
    """the newest of its steps from which a generation resumed in memory, by the names of manifests, or -1"""
    refusal: str = ""
    """why its records are not read if another version of planner wrote them, else empty"""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """How a run stands, as `survey` found it."""

    url: str
    problem: str
    """why the run cannot be resumed, empty if it can"""
    lease: LeaseRecord | None = None
    """of the driver that runs it or ran it last, or None if there is no readable lease"""
    driver: Literal["none", "alive", "ended", "unknown"] = "none"
    """unknown: on another machine, so only watching the lease would show it"""
    live: RunStatus | None = None
    """what the controller of that driver says. None if the driver is not alive here, or if there is no status"""
    newest: Manifest | None = None
    """the newest commit that can be read and whose files exist"""
    not_used: tuple[CommitNotUsed, ...] = ()
    """newer commits that are lost or damaged, and what a start does instead"""
    num_commits: int = 0
    kept: tuple[str, ...] = ()
    """names of the commits whose files exist, oldest first"""
    num_generations: int = 0
    segments: tuple[SegmentEnds, ...] = ()
    """of the newest generations, oldest first"""
    job_digest: str = ""
    """names the file of the newest generation's job, or empty before the first generation"""
    failure: CodeFailure | None = None
    """the last error of the user's own code, or None if there is none, or a generation or a launch has begun since"""
    job: Job | None = None
    """the newest generation's job, or None if its file is gone or cannot be read"""


def is_run(storage: Storage) -> bool:
    """Whether the folder holds a run or a part of one."""
    return not _OF_A_RUN.isdisjoint(storage.names(""))


def survey_folder(folder: str) -> list[Survey]:
    """Survey the newest generation of every run directly in a folder, or of the run that the folder is.

    Raises:
        StoreError: the folder does not exist, is a file or cannot be reached.
    """
    place = Storage(folder)
    if place.is_local and Path(place.path("")).is_file():
        raise StoreError(f"{folder}: this is a file. Write the folder that holds your runs")
    if not place.exists(""):
        raise StoreError(f"{folder}: no such folder. Write the folder that holds your runs")
    urls = [folder] if is_run(place) else [f"{folder.rstrip('/')}/{name}" for name in place.names("")]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [found for found in pool.map(_survey_or_reason, urls) if found is not None]


def _survey_or_reason(url: str) -> Survey | None:
    """The survey of a folder. None if it holds no run. If it cannot be read, the survey holds only the reason."""
    try:
        return survey(url) if is_run(Storage(url)) else None
    except StoreError as error:
        return Survey(url=url, problem=str(error))


def survey(url: str, most_generations: int = 1) -> Survey:
    """Survey one run and its newest generations. Damaged parts are left out, and `problem` has the reason.

    Raises:
        StoreError: its folder cannot be read.
    """
    run = RunFolder(Storage(url))
    names, held, numbers = run.commits(), run.held_steps(), run.segments()
    there = set(run.storage.names("checkpoints"))
    kept = tuple(name for name in names if name in there)
    segments = tuple(_segment(run.storage, number, names, held) for number in numbers[-most_generations:])
    lease = newest_lease(run.storage)
    driver = driver_state(lease)
    damaged = _identity_problem(run, names) or _format_problem(segments, lease)
    newest, no_commit = (None, "") if damaged else _newest(run, names, kept, segments)
    manifest = newest.manifest if newest else None
    header = segments[-1].header if segments else None
    job_digest = header.job_digest if header else manifest.job_digest if manifest else ""
    return Survey(
        url=url,
        problem=damaged or no_commit,
        lease=lease.holder if lease else None,
        driver=driver,
        live=_live(run.storage, lease) if driver == "alive" else None,
        newest=manifest,
        not_used=tuple(newest.not_used) if newest else (),
        num_commits=len(names),
        kept=kept,
        num_generations=len(numbers),
        segments=segments,
        job_digest=job_digest,
        failure=_failure(run.storage, header, lease.holder if lease and driver in {"alive", "unknown"} else None),
        job=_job(run, job_digest),
    )


def _failure(storage: Storage, newest: GenerationRecord | None, driver: LeaseRecord | None) -> CodeFailure | None:
    """The last failure, unless a generation or another launch has begun since. `driver` is None if none is running."""
    failure = read_failure(storage)
    if failure is None or (newest is not None and failure.time_s <= newest.time_s):
        return None
    return failure if driver is None or driver.launch == failure.launch else None


def _live(storage: Storage, lease: FoundLease | None) -> RunStatus | None:
    """The status that the driver with the lease has published. None if there is none."""
    status, holder = read_status(storage), lease.holder if lease else None
    return status if status and holder and status.launch == holder.launch else None


def _segment(storage: Storage, generation: int, commits: Sequence[str], held: Sequence[str]) -> SegmentEnds:
    name = segment_name(generation)
    size_bytes = storage.size_bytes(name)
    head = storage.read_first(name, _HEAD_BYTES)
    tail_from = max(size_bytes - _TAIL_BYTES, 0)
    header, tail = header_among(head), records_among(storage.read_from(name, tail_from))
    events = (record for record in records_among(head[:tail_from]) if isinstance(record, EventRecord))
    later = (record for record in tail if not isinstance(record, GenerationRecord))
    return SegmentEnds(
        generation=generation,
        header=header,
        records=(*((header,) if header else ()), *events, *later),
        committed_step=_last_step(commits, generation),
        held_step=_last_step(held, generation),
        refusal=_format_refusal(head, name),
    )


def _last_step(names: Sequence[str], generation: int) -> int:
    """The newest step of a generation among names of steps, or -1 if it has none."""
    return max((step for step, by in map(commit_of, names) if by == generation), default=-1)


def _identity_problem(run: RunFolder, names: Sequence[str]) -> str:
    try:
        run.require_identity_of(names)
        if run.storage.exists("run.json"):
            run.identity()
    except StoreError as error:
        return str(error)
    return ""


def _format_refusal(head: bytes, name: str) -> str:
    try:
        require_segment_format(head, name)
    except NewerFormat as error:
        return str(error)
    return ""


def _format_problem(segments: Sequence[SegmentEnds], lease: FoundLease | None) -> str:
    """Why this version of planner cannot resume a run that another version drove last. Empty if it can."""
    if lease is not None and lease.refusal:
        return lease.refusal
    return segments[-1].refusal if segments else ""


def _newest(
    run: RunFolder, names: Sequence[str], kept: Sequence[str], segments: Sequence[SegmentEnds]
) -> tuple[Newest | None, str]:
    """The newest commit that is there, by the ends of the ledger, and the reason if the run cannot be resumed."""
    if names and not kept:
        return None, f"the files of all {len(names)} commits are gone"
    records = [record for segment in segments for record in segment.records if isinstance(record, CommitRecord)]
    try:
        return newest_commit(run, {record.name: record.sha256 for record in reversed(records)}), ""
    except StoreError as error:
        return None, str(error)


def _job(run: RunFolder, job_digest: str) -> Job | None:
    try:
        return run.job_if_known(job_digest) if job_digest else None
    except StoreError:
        return None
