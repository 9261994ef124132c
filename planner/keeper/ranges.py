"""Which bytes of which copy a worker needs: from the cuts at an old world size to those at a new one. Pure.

A tensor is flattened. A copy's piece of it is a range of elements: rows of a shard, or all of it where each rank has
all (an optimizer's step count). Every byte that a worker wants is read once.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.keeper.copies import CopyKey, Piece
from planner.keeper.errors import NotCovered
from planner.keeper.whole_steps import Source, Whole, newest_whole

__all__ = ["Read", "Whole", "by_copy", "newest_whole", "plan_reads"]


@dataclass(frozen=True, kw_only=True)
class Read:
    """Bytes of one copy, and where they go."""

    node: str
    """whose keeper has the copy"""
    key: CopyKey
    name: str
    """of the tensor"""
    source_offset: int
    """in the copy's memory, in bytes"""
    num_bytes: int
    target_offset: int
    """in the wanted range, in bytes"""


@dataclass(frozen=True, kw_only=True)
class _Held:
    """A piece that is not empty, and all the copies that have it."""

    piece: Piece
    sources: tuple[tuple[Source, int], ...]
    """each with the piece's offset in its own memory"""


def plan_reads(whole: Whole, wanted: Sequence[Piece], own_node: str) -> list[Read]:
    """The reads that fill all wanted ranges: each byte once, sorted by range and offset, adjacent ones in one.

    Bytes come from `own_node` if a copy there has them. Otherwise they are spread over the nodes that have them, and
    workers on different nodes begin with different ones.

    Args:
        whole: the copies.
        wanted: the worker's own shards. Where they lie in memory, and their digests, do not matter.
        own_node: of the worker.

    Raises:
        NotCovered: no copy has a wanted element, or the copies have the tensor in another dtype or shape.
        ValueError: a wanted range leads out of its tensor, or a tensor is named twice.
    """
    if len({want.name for want in wanted}) < len(wanted):
        raise ValueError("a tensor is wanted twice")
    index = _index(whole, {want.name for want in wanted})
    spread = _Spread(own_node, {source.node for sources in whole.sources for source in sources})
    return [read for want in wanted for read in _merged(_reads(want, index, spread))]


def by_copy(reads: Iterable[Read]) -> dict[tuple[str, CopyKey], list[Read]]:
    """The reads by node and key: each list is one request to one keeper."""
    found: dict[tuple[str, CopyKey], list[Read]] = {}
    for read in reads:
        found.setdefault((read.node, read.key), []).append(read)
    return found


class _Spread:
    """Chooses nodes: the own one, otherwise the one with the fewest bytes so far."""

    def __init__(self, own_node: str, nodes: set[str]) -> None:
        ordered = sorted(nodes)
        after = bisect_right(ordered, own_node)
        # Between equals, the next node after the own one, in a ring.
        self._rank = {node: number for number, node in enumerate(ordered[after:] + ordered[:after])}
        self._own_node = own_node
        self._bytes: Counter[str] = Counter()

    def choose(self, candidates: Sequence[tuple[Source, int]], num_bytes: int) -> tuple[Source, int]:
        """One of the candidates, each with an offset in its memory."""
        chosen = min(candidates, key=self._price)
        self._bytes[chosen[0].node] += num_bytes
        return chosen

    def _price(self, candidate: tuple[Source, int]) -> tuple[bool, int, int, CopyKey]:
        node = candidate[0].node
        return node != self._own_node, self._bytes[node], self._rank[node], candidate[0].key


def _index(whole: Whole, names: set[str]) -> Mapping[str, list[_Held]]:
    """The pieces of each tensor by rank, also empty ones."""
    found: dict[str, list[_Held]] = {name: [] for name in names}
    for sources in whole.sources:
        offsets = [{piece.name: piece.offset for piece in source.copy.pieces} for source in sources]
        for piece in sources[0].copy.pieces:
            if piece.name in names:
                places = zip(sources, offsets, strict=True)
                held = _Held(piece=piece, sources=tuple((source, at[piece.name]) for source, at in places))
                found[piece.name].append(held)
    return found


def _reads(want: Piece, index: Mapping[str, list[_Held]], spread: _Spread) -> Iterator[Read]:
    """The reads of one range, in order: one for each part within which the copies that have it do not change."""
    num_elements = math.prod(want.shape)
    if not 0 <= want.start <= want.stop <= num_elements:
        raise ValueError(f"{want.name}: elements {want.start} to {want.stop} of {num_elements} are wanted")
    pieces = index[want.name]
    item_bytes = _item_bytes(want, pieces)
    inside = [held for held in pieces if held.piece.start < want.stop and held.piece.stop > want.start]
    cuts = {cut for held in inside for cut in (held.piece.start, held.piece.stop) if want.start < cut < want.stop}
    for start, stop in pairwise(sorted({want.start, want.stop, *cuts})):
        candidates = [
            (source, offset + (start - held.piece.start) * item_bytes)
            for held in inside
            if held.piece.start <= start and stop <= held.piece.stop
            for source, offset in held.sources
        ]
        if not candidates:
            raise NotCovered(
                f"No copy has elements {start} to {stop} of {want.name}. Use an older step, or the newest commit."
            )
        num_bytes = (stop - start) * item_bytes
        source, offset = spread.choose(candidates, num_bytes)
        yield Read(
            node=source.node,
            key=source.key,
            name=want.name,
            source_offset=offset,
            num_bytes=num_bytes,
            target_offset=(start - want.start) * item_bytes,
        )


def _item_bytes(want: Piece, pieces: Sequence[_Held]) -> int:
    """The bytes of one element of a tensor, which all copies must describe as it is wanted. 1 if it has no elements."""
    if not pieces:
        raise NotCovered(f"No copy has a tensor {want.name}. The copies are of another model or optimizer.")
    for held in pieces:
        piece = held.piece
        if (piece.dtype, piece.shape) != (want.dtype, want.shape):
            raise NotCovered(
                f"{want.name}: the copies have {piece.dtype} {piece.shape}, wanted is {want.dtype} {want.shape}. "
                "They are of another model or optimizer."
            )
    sizes = {held.piece.item_bytes for held in pieces if held.piece.num_bytes}
    if len(sizes) > 1:
        raise NotCovered(f"{want.name}: elements have {sorted(sizes)} bytes, depending on the copy.")
    return max(sizes, default=1)


def _merged(reads: Iterable[Read]) -> Iterator[Read]:
    """The reads of one range, those that follow each other in one copy as one. A copy has one piece of a tensor."""
    last: Read | None = None
    for read in reads:
        if last is not None and (last.node, last.key) == (read.node, read.key):
            last = replace(last, num_bytes=last.num_bytes + read.num_bytes)
            continue
        if last is not None:
            yield last
        last = read
    if last is not None:
        yield last
