"""What a run's earlier generations tell of saves and losses, read from the ends of their segments."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.store.ledger import commits_among, header_among, segment_name
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

# The newest ones: what a cluster was like long ago says little, and a run of a thousand generations begins as fast.
_MOST_GENERATIONS = 32
# Some 700 steps of a ledger; a header is a hundredth of it.
_TAIL_BYTES = 2**18
_NUM_SAVES = 3


@dataclass(frozen=True, kw_only=True)
class EarlierGenerations:
    """What was seen before a generation began."""

    losses: int
    """generations that left steps behind which nobody had committed: they went without notice"""
    observed_s: float
    """since the first generation that was looked at began, pauses included"""
    saves_s: tuple[float, ...]
    """what the last commits took, oldest first; empty if none was found"""


def read_earlier(run: RunFolder, *, before: int, now_s: float) -> EarlierGenerations:
    """What the generations before `before` tell; at most 256 KiB of each of the newest 32 are read.

    Raises:
        StoreError: the store cannot be read.
    """
    numbers = [number for number in run.segments() if number < before][-_MOST_GENERATIONS:]
    tails = [_tail(run.storage, number) for number in numbers]
    head = run.storage.read_first(segment_name(numbers[0]), _TAIL_BYTES) if numbers else b""
    return summarize_earlier(head, tails, now_s)


def summarize_earlier(head: bytes, tails: Sequence[bytes], now_s: float) -> EarlierGenerations:
    """What segments tell.

    Args:
        head: how the first one begins.
        tails: how each one ends, oldest first; lines may be torn, or lack.
        now_s: the time of day, on the clock of the headers.
    """
    header = header_among(head)
    saves_s = [commit.seconds for tail in tails for commit in commits_among(tail)]
    return EarlierGenerations(
        losses=sum(map(_left_steps_behind, tails)),
        # Another machine's clock may be ahead.
        observed_s=max(now_s - header.time_s, 0.0) if header else 0.0,
        saves_s=tuple(saves_s[-_NUM_SAVES:]),
    )


def _left_steps_behind(tail: bytes) -> bool:
    """Whether a step stands behind the last commit; a message cannot look like either, its quotes are escaped."""
    return tail.rfind(b'"kind":"step"') > tail.rfind(b'"kind":"commit"')


def _tail(storage: Storage, generation: int) -> bytes:
    name = segment_name(generation)
    return storage.read_from(name, max(storage.size_bytes(name) - _TAIL_BYTES, 0))
