"""Save times, step times and losses of a run's earlier generations, read from the ends of their segments.

`plan/interval.py` chooses the commit interval from them. A launch expects its first rounds from the step times.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from planner.store.ledger import commits_among, header_among, readable, records_among, segment_name
from planner.store.records import CommitRecord, GenerationRecord, StepRecord
from planner.store.run_folder import RunFolder, commit_of

# Only the newest: old losses say little, and a run of a thousand generations must start as fast as a new one.
_MOST_GENERATIONS = 32
# About 700 steps of a ledger. A header is a hundredth of it.
_TAIL_BYTES = 2**18
_NUM_SAVES, _NUM_STEPS = 3, 20
# Quotes in messages are escaped, so no message matches.
_STEP = b'"kind":"step"'


@dataclass(frozen=True, kw_only=True)
class CommitCost:
    """How long a commit on record took."""

    seconds: float
    """until it was durable. For commits of version 0.1.0, which were synchronous, the pause of training"""
    world_size: int
    """the workers that wrote it"""


@dataclass(frozen=True, kw_only=True)
class EarlierGenerations:
    """Losses and save times before a generation began."""

    losses: int = 0
    """generations that ended without notice: they left steps that no commit has, and nobody resumed in memory"""
    observed_s: float = 0.0
    """seconds since the oldest generation that was read began, pauses included"""
    save_times: tuple[float, ...] = ()
    """seconds that the last commits cost training, oldest first, or empty if there are none"""
    write_times: tuple[float, ...] = ()
    """seconds until they were durable, likewise. Not known for commits of version 0.1.0"""


def read_earlier(run: RunFolder, *, before: int, now_s: float) -> EarlierGenerations:
    """Summarize the generations with numbers below `before`. Reads at most 256 KiB of each of the newest 32.

    Raises:
        StoreError: the store cannot be read.
    """
    tails = list(_tails(run, before))[::-1]
    head = _head(run, tails[0][0]) if tails else b""
    held_steps = {generation: step for step, generation in map(commit_of, run.held_steps())}
    return summarize_earlier(
        head, [tail for _, tail in tails], now_s, [held_steps.get(number, -1) for number, _ in tails]
    )


def last_commit_cost(run: RunFolder) -> CommitCost | None:
    """What the run's last recorded commit took. None if none is on record in the newest 32 generations.

    Raises:
        StoreError: the store cannot be read.
    """
    for number, tail in _tails(run):
        if commits := commits_among(tail):
            header = header_among(_head(run, number))
            seconds = commits[-1].write_s or commits[-1].seconds
            return CommitCost(seconds=seconds, world_size=header.world_size) if header else None
    return None


def last_steps(run: RunFolder) -> tuple[GenerationRecord, float] | None:
    """The newest generation with steps on record, and the median seconds of its last steps. None if there is none.

    Reads the newest 32 generations at most.

    Raises:
        StoreError: the store cannot be read.
    """
    for number, tail in _tails(run):
        if steps := _steps(tail):
            header = header_among(_head(run, number))
            return (header, median(step.seconds for step in steps[-_NUM_STEPS:])) if header else None
    return None


def num_recorded(run: RunFolder, *, before: int) -> int:
    """Steps of the run on record at the end of the newest generation below `before` that has any, else 0.

    Reads the newest 32 generations at most.

    Raises:
        StoreError: the store cannot be read.
    """
    newest = next(filter(None, (_steps(tail) for _, tail in _tails(run, before))), [])
    return newest[-1].step + 1 if newest else 0


def summarize_earlier(
    head: bytes, tails: Sequence[bytes], now_s: float, held_steps: Sequence[int] = ()
) -> EarlierGenerations:
    """Summarize the generations whose segments have these ends.

    Args:
        head: the first bytes of the oldest segment.
        tails: the last bytes of each segment, oldest first. Lines may be torn or missing.
        now_s: the time in seconds since the epoch.
        held_steps: for each segment, the newest step from which a generation resumed in memory, or -1. Empty: none.
    """
    header = header_among(head)
    commits = [commit for tail in tails for commit in commits_among(tail)]
    write_times = [commit.write_s for commit in commits if commit.write_s]
    return EarlierGenerations(
        losses=sum(map(_left_steps_behind, tails, held_steps or [-1] * len(tails))),
        # Another machine's clock may be ahead.
        observed_s=max(now_s - header.time_s, 0.0) if header else 0.0,
        save_times=tuple(_costs(commits)[-_NUM_SAVES:]),
        write_times=tuple(write_times[-_NUM_SAVES:]),
    )


def _left_steps_behind(tail: bytes, held_step: int) -> bool:
    """Whether a step was done that neither a commit nor the next generation has.

    After a hand-over in memory at the last step nothing is left behind. After a death, the copies that the next
    generation resumes from may be older. The record of a commit may stand behind those of later steps.
    """
    at = tail.rfind(_STEP)
    if at < 0:
        return False
    line = tail[tail.rfind(b"\n", 0, at) + 1 :].partition(b"\n")[0]
    last_step, commits = readable(line.decode(errors="replace")), commits_among(tail)
    if not isinstance(last_step, StepRecord):  # a torn line is the last one of a crash
        return True
    return last_step.step >= max(held_step, commits[-1].step if commits else -1)


def _costs(commits: Sequence[CommitRecord]) -> list[float]:
    """What commits cost training: the pauses of those that were written in the background, or of all if none was."""
    beside = [commit.seconds for commit in commits if commit.seconds < commit.write_s]
    return beside or [commit.seconds for commit in commits]


def _steps(tail: bytes) -> list[StepRecord]:
    return [record for record in records_among(tail) if isinstance(record, StepRecord)]


def _head(run: RunFolder, generation: int) -> bytes:
    return run.storage.read_first(segment_name(generation), _TAIL_BYTES)


def _tails(run: RunFolder, before: int = sys.maxsize) -> Iterator[tuple[int, bytes]]:
    """The newest 32 generations with numbers below `before`, each with the end of its segment, newest first."""
    for number in [number for number in run.segments() if number < before][: -_MOST_GENERATIONS - 1 : -1]:
        name = segment_name(number)
        yield number, run.storage.read_from(name, max(run.storage.size_bytes(name) - _TAIL_BYTES, 0))
