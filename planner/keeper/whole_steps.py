"""Which step the keepers have whole: a sealed copy of every rank, on nodes that are still there. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.keeper.copies import Copy, CopyKey


@dataclass(frozen=True, kw_only=True)
class Source:
    """A copy, and the node whose keeper has it."""

    node: str
    copy: Copy

    @property
    def key(self) -> CopyKey:
        """Of the copy."""
        return self.copy.key


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A step of which every rank's shards are in memory somewhere."""

    run_id: str
    generation: int
    step: int
    world_size: int
    facts: Mapping[str, Any]
    """what rank 0's copy says of the step"""
    sources: tuple[tuple[Source, ...], ...]
    """by rank: where its shards are, sorted by node. At least one source each, and all of one rank hold the same"""

    @property
    def digests(self) -> dict[str, str]:
        """`<rank>/<tensor name>` -> XXH3-128 digest of that rank's shard."""
        return {
            f"{rank}/{piece.name}": piece.digest
            for rank, sources in enumerate(self.sources)
            for piece in sources[0].copy.pieces
        }


def newest_whole(found: Mapping[str, Sequence[Copy]], *, run_id: str) -> Whole | None:
    """The newest step that is whole, by generation and then by step. None if no step is.

    A step is whole if every rank from 0 to W - 1 has a copy on some node, all copies name the same W, copies of one
    rank are equal but for their place, and rank 0's copy has facts. Otherwise the next older step is looked at.

    Args:
        found: node -> the sealed copies in its keeper's memory.
        run_id: copies of other runs do not count.
    """
    steps: dict[tuple[int, int], list[Source]] = defaultdict(list)
    for node in sorted(found):
        for copy in sorted(found[node], key=lambda copy: copy.key):
            if copy.run_id == run_id:
                steps[copy.key.generation, copy.step].append(Source(node=node, copy=copy))
    wholes = (_whole(steps[newest]) for newest in sorted(steps, reverse=True))
    return next((whole for whole in wholes if whole is not None), None)


def _whole(sources: Sequence[Source]) -> Whole | None:
    """One step's copies as a whole. None if they are none."""
    first = sources[0].copy
    by_rank: dict[int, list[Source]] = defaultdict(list)
    for source in sources:
        by_rank[source.key.rank].append(source)
    if {source.copy.world_size for source in sources} != {first.world_size}:
        return None
    if set(by_rank) != set(range(first.world_size)) or not by_rank[0][0].copy.facts:
        return None
    if any(_content(other.copy) != _content(first.copy) for first, *others in by_rank.values() for other in others):
        return None
    return Whole(
        run_id=first.run_id,
        generation=first.key.generation,
        step=first.step,
        world_size=first.world_size,
        facts=by_rank[0][0].copy.facts,
        sources=tuple(tuple(by_rank[rank]) for rank in range(first.world_size)),
    )


def _content(copy: Copy) -> tuple[Mapping[str, Any], dict[str, tuple[Any, ...]]]:
    """What two copies of one rank at one step must have in common: all but their slot, and places in memory."""
    pieces = copy.pieces
    return copy.facts, {
        each.name: (each.dtype, each.shape, each.start, each.stop, each.num_bytes, each.digest) for each in pieces
    }
