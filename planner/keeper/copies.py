"""What a keeper holds: copies of one worker's shards at one step, described for workers of any count, with digests."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import xxhash

from planner.keeper.protocol import chunks

Tick = Callable[[], None]
"""called between chunks of work"""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One tensor's shard within a copy: the elements `[start, stop)` of the whole tensor, flattened."""

    name: str
    """in a checkpoint (`planner.train.state.TrainState.tensors`)"""
    dtype: str
    """as torch names it, `float32`"""
    shape: tuple[int, ...]
    """of the whole tensor"""
    start: int
    stop: int
    offset: int
    """of its first byte in the copy's memory"""
    num_bytes: int
    digest: str = ""
    """XXH3-128 of its bytes, 32 hex digits. Empty before the keeper has taken it"""

    @property
    def item_bytes(self) -> int:
        """The bytes of one element. 1 for a piece without elements."""
        return self.num_bytes // (self.stop - self.start) if self.stop > self.start else 1


@dataclass(frozen=True, kw_only=True, order=True)
class CopyKey:
    """Which place in a keeper's memory: a worker of a generation has several (`slot`), used in turns."""

    generation: int
    rank: int
    slot: int


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One worker's shards after `step` steps. It counts once it is sealed: the keeper has taken all digests."""

    key: CopyKey
    run_id: str
    step: int
    world_size: int
    pieces: tuple[Piece, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """on rank 0: what the manifest of this step says (JSON values)"""

    @property
    def num_bytes(self) -> int:
        """Of the memory that it needs."""
        return max((piece.offset + piece.num_bytes for piece in self.pieces), default=0)

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of `as_json`.

        Raises:
            KeyError, TypeError, ValueError: `value` is something else.
        """
        pieces = tuple(Piece(**{**piece, "shape": tuple(piece["shape"])}) for piece in value["pieces"])
        return cls(**{**value, "key": CopyKey(**value["key"]), "pieces": pieces})


def with_digests(copy: Copy, memory: memoryview, tick: Tick) -> Copy:
    """The same copy, with the digests of what is in memory now: XXH3-128. They find damage, not forgery."""
    return replace(copy, pieces=tuple(replace(piece, digest=_digest(piece, memory, tick)) for piece in copy.pieces))


def damaged(copy: Copy, memory: memoryview, tick: Tick) -> list[str]:
    """The names of the pieces whose bytes differ from their digest."""
    return [piece.name for piece in copy.pieces if _digest(piece, memory, tick) != piece.digest]


def _digest(piece: Piece, memory: memoryview, tick: Tick) -> str:
    digest = xxhash.xxh3_128()
    for chunk in chunks(memory[piece.offset : piece.offset + piece.num_bytes]):
        digest.update(chunk)
        tick()
    return digest.hexdigest()
