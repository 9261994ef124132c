"""Digests of a copy's pieces: XXH3-128, taken over the keeper's memory. They find damage, not forgery."""

from collections.abc import Callable
from dataclasses import replace

import xxhash

from planner.keeper.copies import Copy, Piece
from planner.keeper.protocol import chunks

Tick = Callable[[], None]
"""called between chunks of work"""


def with_digests(copy: Copy, memory: memoryview, tick: Tick) -> Copy:
    """The same copy, with the digests of what is in memory now."""
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
