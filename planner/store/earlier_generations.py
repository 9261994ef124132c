"""Save times and losses of a run's earlier generations, read from the ends of their segments.

`plan/interval.py` chooses the commit interval from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.store.ledger import commits_among, header_among, segment_name
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

# Only the newest: old losses say little, and a run of a thousand generations must start as fast as a new one.
_MOST_GENERATIONS = 32
# About 700 steps of a ledger. A header is a hundredth of it.
_TAIL_BYTES = 2**18
_NUM_SAVES = 3


@dataclass(frozen=True, kw_only=True)
class EarlierGenerations:
    """Losses and save times before a generation began."""

    losses: int
    """generations that ended without notice: they left uncommitted steps"""
    observed_s: float
    """seconds since the oldest generation that was read began, pauses included"""
    save_times: tuple[float, ...]
    """seconds that the last commits took, oldest first, or empty if there are none"""


def read_earlier(run: RunFolder, *, before: int, now_s: float) -> EarlierGenerations:
    """Summarize the generations with numbers below `before`. Reads at most 256 KiB of each of the newest 32.

    Raises:
        StoreError: the store cannot be read.
    """
    numbers = [number for number in run.segments() if number < before][-_MOST_GENERATIONS:]
    tails = [_tail(run.storage, number) for number in numbers]
    head = run.storage.read_first(segment_name(numbers[0]), _TAIL_BYTES) if numbers else b""
    return summarize_earlier(head, tails, now_s)


def summarize_earlier(head: bytes, tails: Sequence[bytes], now_s: float) -> EarlierGenerations:
    """Summarize the generations whose segments have these ends.

    Args:
        head: the first bytes of the oldest segment.
        tails: the last bytes of each segment, oldest first. Lines may be torn or missing.
        now_s: the time in seconds since the epoch.
    """
    header = header_among(head)
    save_times = [commit.seconds for tail in tails for commit in commits_among(tail)]
    return EarlierGenerations(
        losses=sum(map(_left_steps_behind, tails)),
        # Another machine's clock may be ahead.
        observed_s=max(now_s - header.time_s, 0.0) if header else 0.0,
        save_times=tuple(save_times[-_NUM_SAVES:]),
    )


def _left_steps_behind(tail: bytes) -> bool:
    """Whether a step follows the last commit. Quotes in messages are escaped, so no message matches."""
    return tail.rfind(b'"kind":"step"') > tail.rfind(b'"kind":"commit"')


def _tail(storage: Storage, generation: int) -> bytes:
    name = segment_name(generation)
    return storage.read_from(name, max(storage.size_bytes(name) - _TAIL_BYTES, 0))
